"""Line plots of runs, drawn by plotly.js in the reader's browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lightning_hier.cli.mistakes import INSTALL
from lightning_hier.cli.report.units import Unit, unit_of

Point = tuple[float, float]
# Readable on light and dark pages. Further runs repeat the colours with other dashes.
_COLOURS = (
    "#2a86d1", "#e0701f", "#14a37a", "#cf5fa6", "#c9981a", "#7a6fe0", "#dc4a57", "#7d8b99"
)  # fmt: skip
_DASHES = (("solid", "solid"), ("dash", "dashed"), ("dot", "dotted"), ("dashdot", "double"))
_GREY, _GRID, _CLEAR = "#808890", "rgba(128, 136, 144, 0.25)", "rgba(0, 0, 0, 0)"
# Above this ratio, small values are invisible on a linear axis.
_LOGARITHMIC_FROM = 50.0
# A point takes 20 bytes in the page, and a plot is about 400 pixels wide.
_MOST_POINTS = 1000
_MARKED_UP_TO = 30


@dataclass(frozen=True)
class Line:
    """A run in a plot. ``run`` is its index, which determines the colour."""

    run: int
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Plot:
    """A plot with a line for each run.

    Attributes:
        title: title above the plot.
        lines: lines of the runs that have points.
        x_label: label of the x axis without its unit.
        x_kind: ``"bytes"``, ``"seconds"`` or another kind.
        y_kind: the same. Axes of a kind include zero.
        x_log: whether the x axis is logarithmic.

    """

    title: str
    lines: Sequence[Line]
    x_label: str
    x_kind: str = ""
    y_kind: str = ""
    x_log: bool = False


def plotly_js() -> str:
    """The source of plotly.js.

    Raises:
        ValueError: plotly is not installed.

    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError(f"report needs plotly: {INSTALL}") from error
    return str(get_plotlyjs())


def chip(run: int) -> str:
    """A short line in the style of a run, for legends and tables."""
    colour, (_, border) = _style(run)
    return f'<span class="chip" style="border-top: 3px {border} {colour}"></span>'


def figure(plot: Plot, section: str) -> str:
    """The plot as HTML, or a note if no run has a point. The page must have :func:`plotly_js`."""
    # NaN and inf are left out, so that a run that has diverged does not spoil the axes.
    drawn = [Line(line.run, line.name, _drawable(line.points, plot.x_log)) for line in plot.lines]
    lines = [line for line in drawn if line.points]
    if not lines:
        return _framed(plot.title, section, plot.title, '<p class="none">nothing logged</p>')
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    x, x_axis = _axis(xs, plot.x_kind, log=plot.x_log, from_zero=True)
    spread = min(ys) > 0 and max(ys) > _LOGARITHMIC_FROM * min(ys)
    counted = bool(plot.y_kind)
    y, y_axis = _axis(ys, plot.y_kind, log=spread and not counted, from_zero=counted)
    x_axis["title"] = {"text": x.labelled(plot.x_label)}
    layout = {
        "xaxis": x_axis,
        "yaxis": y_axis,
        "font": {"color": _GREY, "size": 11},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#1c2026"}},
        "hovermode": "x unified",
        "margin": {"l": 50, "r": 10, "t": 28, "b": 40},
        "modebar": {"bgcolor": _CLEAR, "color": _GREY, "remove": ["select", "lasso"]},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "showlegend": False,  # the page has one legend for all plots
        "template": "none",
    }
    drawing = _drawn([_trace(line, x, y) for line in lines], layout)
    return _framed(plot.title, section, y.labelled(plot.title), drawing)


def _drawn(traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> str:
    # Imported here, because it takes 0.2 s that other commands do not need.
    from plotly.graph_objects import Figure
    from plotly.io import to_html

    return str(
        to_html(
            Figure(data=traces, layout=layout),
            # By default, a button uploads the plot to a server of Plotly.
            config={"displaylogo": False, "responsive": True, "showSendToCloud": False},
            include_plotlyjs=False,
            full_html=False,
            default_height="280px",
        )
    )


def _framed(title: str, section: str, caption: str, inside: str) -> str:
    label = escape(f"{section}: {title}")
    return (
        f'<figure aria-label="{label}"><figcaption>{escape(caption)}</figcaption>{inside}</figure>'
    )


def _trace(line: Line, x: Unit, y: Unit) -> dict[str, Any]:
    colour, (dash, _) = _style(line.run)
    points = _thinned(line.points)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) <= _MARKED_UP_TO else "lines",
        "name": escape(line.name),
        "meta": line.run,  # by which page.js finds the lines of a run, to show or hide them
        "x": [point[0] / x.size for point in points],
        "y": [point[1] / y.size for point in points],
        "line": {"color": colour, "dash": dash, "width": 1.6},
        "marker": {"size": 4},
    }


def _style(run: int) -> tuple[str, tuple[str, str]]:
    """Colour of a run, and its dash style in plotly and in CSS."""
    return _COLOURS[run % len(_COLOURS)], _DASHES[run // len(_COLOURS) % len(_DASHES)]


def _axis(
    values: Sequence[float], kind: str, *, log: bool, from_zero: bool
) -> tuple[Unit, dict[str, Any]]:
    low, high = min(values), max(values)
    # On a logarithmic axis, the unit of the largest value would be too large for most ticks.
    unit = unit_of(kind, math.sqrt(low * high) if log else max(abs(low), abs(high)))
    return unit, {
        "type": "log" if log else "linear",
        "rangemode": "tozero" if from_zero else "normal",
        "gridcolor": _GRID,
        "zeroline": False,
        "hoverformat": ".4~g",
        "automargin": True,
    }


def _drawable(points: Sequence[Point], x_log: bool) -> list[Point]:
    return [
        point for point in points if all(map(math.isfinite, point)) and (point[0] > 0 or not x_log)
    ]


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Reduce the points to the minimum and maximum of each section, and the ends."""
    if len(points) <= _MOST_POINTS:
        return points
    # Not every n-th point, which would hide single peaks.
    pieces = _MOST_POINTS // 2
    kept = {0, len(points) - 1}
    for piece in range(pieces):
        places = range(len(points) * piece // pieces, len(points) * (piece + 1) // pieces)
        kept.add(min(places, key=lambda place: points[place][1]))
        kept.add(max(places, key=lambda place: points[place][1]))
    return [points[place] for place in sorted(kept)]
