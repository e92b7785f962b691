"""Tables of the page: results and settings of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lightning_hier.cli.report.plots import chip
from lightning_hier.cli.report.runs import EMPTY, Run
from lightning_hier.cli.report.units import with_unit

_ABSENT = "-"


def results(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """Table of results with one row per run. ``data-value`` has the exact value."""
    rows, titles = [], ["run", "strategy", "ranks"]
    for number, run in enumerate(runs):
        across, group = (run.total(f"hier/{tier}/payload_bytes") for tier in ("across", "group"))
        values: dict[str, tuple[str, float | None]] = {
            "steps": ("steps", max(series.steps[-1] for series in run.series.values())),
            **{name: ("", run.series.get(name, EMPTY).final) for name in metrics},
            "time": ("seconds", run.elapsed.final),
            "in groups": ("bytes", group.final),
            "between groups": ("bytes", across.final),
            "waited": ("share", run.waited),
        }
        titles[3:] = values  # the same names for every run
        cells = [
            f'<th scope="row">{chip(number)}{escape(run.name)}</th>',
            f"<td>{escape(str(run.settings.get('strategy', _ABSENT)))}</td>",
            f"<td>{escape(_ranks(run))}</td>",
            *(_cell(name, kind, value) for name, (kind, value) in values.items()),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return _table(f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>")


def settings(runs: Sequence[Run]) -> str:
    """Table of settings. Those in which the runs differ are first and highlighted."""
    by_run = [{**run.hyperparameters, **run.settings} for run in runs]
    names = list(dict.fromkeys(name for values in by_run for name in values))
    if not names:
        return ""
    rows = [(name, [_text(values.get(name, _ABSENT)) for values in by_run]) for name in names]
    rows.sort(key=lambda row: not _differ(row[1]))  # stable: otherwise in the order of the files
    body = []
    for name, values in rows:
        kind = ' class="differs"' if _differ(values) else ""
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        body.append(f'<tr{kind}><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    return _table(f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody>")


def _differ(values: Sequence[str]) -> bool:
    """Whether the runs that have a setting have different values."""
    return len(set(values) - {_ABSENT}) > 1


def _table(inside: str) -> str:
    return f'<div class="scroll"><table>{inside}</table></div>'


def _ranks(run: Run) -> str:
    values = run.settings
    if "ranks" not in values:
        return _ABSENT
    groups, size = values.get("groups"), values.get("ranks_per_group")
    return f"{groups} x {size}" if groups and size else str(values["ranks"])


def _cell(name: str, kind: str, value: float | None) -> str:
    if value is None:
        return f"<td>{_ABSENT}</td>"
    text = with_unit(kind, value)
    return f'<td data-name="{escape(name)}" data-value="{value!r}">{escape(text)}</td>'


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
