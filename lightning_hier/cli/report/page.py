"""The page: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from lightning_hier.cli.report.plots import chip, figure, plotly_js
from lightning_hier.cli.report.runs import Run
from lightning_hier.cli.report.sections import Section, sections
from lightning_hier.cli.report.tables import results, settings
from lightning_hier.version import __version__

_NOTE = (
    "Numbers are the last logged values. Bytes are the payload that the logging rank has sent. A "
    "run in a single group sends all of it inside the group, also between hosts, so plots over "
    "bytes use that. Time starts with training."
)


def page(runs: Sequence[Run], metrics: Sequence[str], only_in_table: Sequence[str] = ()) -> str:
    """The page for these runs, with plots of these metrics."""
    title = f"Comparison of {len(runs)} runs" if len(runs) > 1 else runs[0].name
    parts = [
        f"<header><h1>{escape(title)}</h1>{_legend(runs)}</header>",
        f"<main>{_results(runs, [*metrics, *only_in_table])}",
        *map(_section, sections(runs, metrics)),
        _settings(runs),
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


def _results(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    table = results(runs, metrics)
    return f"<section><h2>Results</h2>{table}<p>{escape(_NOTE)}</p></section>"


def _legend(runs: Sequence[Run]) -> str:
    entries = [
        f'<button type="button" data-run="{number}" aria-pressed="true">'
        f"{chip(number)}{escape(run.name)}</button>"
        for number, run in enumerate(runs)
    ]
    return f'<nav class="legend" aria-label="runs">{"".join(entries)}</nav>'


def _section(section: Section) -> str:
    remark = f"<p>{escape(section.remark)}</p>" if section.remark else ""
    plots = "".join(map(figure, section.plots))
    heading = f"<h2>{escape(section.title)}</h2>"
    return f'<section>{heading}{remark}<div class="plots">{plots}</div></section>'


def _settings(runs: Sequence[Run]) -> str:
    table = settings(runs)
    if not table:
        return ""
    return f"<section><h2>Settings</h2>{table}</section>"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
