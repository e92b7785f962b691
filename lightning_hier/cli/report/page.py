"""The page: one HTML file without external resources, with tables of results and settings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from lightning_hier.cli.report.plots import chip, figure, plotly_js
from lightning_hier.cli.report.runs import EMPTY, Run
from lightning_hier.cli.report.sections import Section, sections
from lightning_hier.cli.report.units import with_unit
from lightning_hier.version import __version__

_NOTE = (
    "Numbers are the last values of the logging rank. Bytes are the payload that it has sent. A "
    "run in a single group sends all of it inside the group, also between hosts, so plots over "
    "bytes use that. Time starts with training. Training does not compute while it waits."
)
_ABSENT = "-"


def page(runs: Sequence[Run], metrics: Sequence[str], only_in_table: Sequence[str] = ()) -> str:
    """The page for these runs, with plots of these metrics."""
    title = f"Comparison of {len(runs)} runs" if len(runs) > 1 else runs[0].name
    parts = [
        f"<header><h1>{escape(title)}</h1>{_legend(runs)}</header>",
        "<main><section><h2>Results</h2>",
        f"{_results(runs, [*metrics, *only_in_table])}<p>{escape(_NOTE)}</p></section>",
        *map(_section, sections(runs, metrics)),
        f"<section><h2>Settings</h2>{table}</section>" if (table := _settings(runs)) else "",
        "</main>",
        f"<footer>lightning_hier {escape(__version__)}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style>"
        f"<script>{plotly_js()}</script></head>"
        f"<body>{''.join(parts)}<script>{_asset('page.js')}</script></body></html>\n"
    )


def _legend(runs: Sequence[Run]) -> str:
    entries = [
        f'<button type="button" data-run="{number}" aria-pressed="true">'
        f"{chip(number)}{escape(run.name)}</button>"
        for number, run in enumerate(runs)
    ]
    return f'<nav class="legend" aria-label="runs">{"".join(entries)}</nav>'


def _section(section: Section) -> str:
    plots = "".join(figure(plot, section.title) for plot in section.plots)
    heading = f"<h2>{escape(section.title)}</h2>"
    return f'<section>{heading}<div class="plots">{plots}</div></section>'


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _results(runs: Sequence[Run], metrics: Sequence[str]) -> str:
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


def _settings(runs: Sequence[Run]) -> str:
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
