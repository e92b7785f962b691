"""Tables of the page: results and settings of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from lightning_hier.cli.report.plots import chip
from lightning_hier.cli.report.runs import Run, Series
from lightning_hier.cli.report.units import with_unit

_ABSENT = "-"
_NONE = f"<td>{_ABSENT}</td>"


def results(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """Table of results with one row per run. ``data-value`` has the exact value."""
    totals: tuple[tuple[str, str, Callable[[Run], Series]], ...] = (
        ("time", "seconds", lambda run: run.elapsed),
        ("in groups", "bytes", lambda run: run.total("hier/group/payload_bytes")),
        ("between groups", "bytes", lambda run: run.total("hier/across/payload_bytes")),
    )
    head = ["run", "strategy", "ranks", "steps", *metrics, *(title for title, *_ in totals)]
    rows = []
    for number, run in enumerate(runs):
        cells = [
            f'<th scope="row">{chip(number)}{escape(run.name)}</th>',
            f"<td>{escape(str(run.settings.get('strategy', _ABSENT)))}</td>",
            f"<td>{escape(_ranks(run))}</td>",
            _number("steps", "", max(series.steps[-1] for series in run.series.values())),
            *(_final(name, "", run.series.get(name)) for name in metrics),
            *(_final(title, kind, of(run)) for title, kind, of in totals),
            _waited(run),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in [*head, "waited"])
    return _table(f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody>")


def settings(runs: Sequence[Run]) -> str:
    """Table of settings. Those in which the runs differ are first and highlighted."""
    by_run = [{**run.hyperparameters, **run.settings} for run in runs]
    names = list(dict.fromkeys(name for values in by_run for name in values))
    if not names:
        return ""
    rows = [(name, [_text(values.get(name, _ABSENT)) for values in by_run]) for name in names]
    rows.sort(key=lambda row: not _differ(row[1]))
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


def _final(name: str, kind: str, series: Series | None) -> str:
    if series is None or not series.steps:
        return _NONE
    return _number(name, kind, series.final)


def _number(name: str, kind: str, value: float) -> str:
    text = f"{value:g}" if name == "steps" else with_unit(kind, value)
    return f'<td data-name="{escape(name)}" data-value="{value!r}">{escape(text)}</td>'


def _waited(run: Run) -> str:
    waited, elapsed = run.total("hier/waited_seconds"), run.total("hier/elapsed_seconds")
    if not waited.steps or not elapsed.steps or not elapsed.final:
        return _NONE
    share = waited.final / elapsed.final
    return f'<td data-name="waited" data-value="{share!r}">{share:.1%}</td>'


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
