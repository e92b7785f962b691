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
    "Numbers are the last values of the logging rank. Bytes are the payload that it has sent. A "
    "run in a single group sends all of it inside the group, also between hosts, so plots over "
    "bytes use that. Time starts with training. Training does not compute while it waits."
)


def page(runs: Sequence[Run], metrics: Sequence[str], only_in_table: Sequence[str] = ()) -> str:
    """The page for these runs, with plots of these metrics."""
    title = f"Comparison of {len(runs)} runs" if len(runs) > 1 else runs[0].name
    parts = [
        f"<header><h1>{escape(title)}</h1>{_legend(runs)}</header>",
        "<main><section><h2>Results</h2>",
        f"{results(runs, [*metrics, *only_in_table])}<p>{escape(_NOTE)}</p></section>",
        *map(_section, sections(runs, metrics)),
        f"<section><h2>Settings</h2>{table}</section>" if (table := settings(runs)) else "",
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
