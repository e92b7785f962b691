"""Line plots as SVG, in colours that the page's style sheet sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lightning_hier.cli.report.axis import Axis, Form
from lightning_hier.cli.report.smoothing import smoothed, thinned
from lightning_hier.cli.report.ticks import short

COLOURS = 8
_WIDTH, _HEIGHT = 380.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 12.0, 40.0
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One run in a plot; ``run`` is its number, which gives its colour."""

    run: int
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Plot:
    """What to draw.

    Attributes:
        title: above it.
        lines: of the runs that have points.
        x_label: without its unit.
        x_kind: bytes, seconds or anything else.
        y_kind: likewise.
        x_form: how the axis is divided.
        y_form: likewise.
        context: what the title is about, for readers who do not see the page.

    """

    title: str
    lines: Sequence[Line]
    x_label: str
    x_kind: str = ""
    y_kind: str = ""
    x_form: Form = "zero"
    y_form: Form = "free"
    context: str = ""


def svg(plot: Plot) -> str:
    """The plot, or a note where no run has anything to draw."""
    lines = [line for line in (_drawable(line, plot) for line in plot.lines) if line.points]
    if not lines:
        title = f"<figcaption>{escape(plot.title)}</figcaption>"
        return f'<figure>{title}<p class="none">nothing logged</p></figure>'
    points = [point for line in lines for point in line.points]
    x = Axis([p[0] for p in points], plot.x_kind, _LEFT, _WIDTH - _RIGHT, form=plot.x_form)
    y = Axis([p[1] for p in points], plot.y_kind, _HEIGHT - _BOTTOM, _TOP, form=plot.y_form)
    of = f" ({y.unit.name})" if y.unit.name else ""
    drawn = [*_grid(x, y, plot.x_label), *(_drawn(line, x, y) for line in lines)]
    label = f"{plot.context} {plot.title}".strip()
    return (
        f"<figure><figcaption>{escape(plot.title + of)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(drawn)}</svg></figure>"
    )


def _drawable(line: Line, plot: Plot) -> Line:
    points = [point for point in line.points if all(map(math.isfinite, point))]
    if plot.x_form == "log":
        points = [point for point in points if point[0] > 0]
    return Line(line.run, line.name, points)


def _grid(x: Axis, y: Axis, x_label: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in y.marks:
        at = y.mark_place(tick)
        parts.append(_rule("grid", (_LEFT, at), (right, at)))
        parts.append(_text("tick y", (_LEFT - 6, at + 3.5), short(tick)))
    for tick in x.marks:
        at = x.mark_place(tick)
        parts.append(_rule("axis", (at, bottom), (at, bottom + 4)))
        parts.append(_text("tick x", (at, bottom + 16), short(tick)))
    parts.append(_rule("axis", (_LEFT, bottom), (right, bottom)))
    label = f"{x_label} ({x.unit.name})" if x.unit.name else x_label
    parts.append(_text("label", ((_LEFT + right) / 2, _HEIGHT - 6), label))
    return parts


def _rule(kind: str, start: Point, end: Point) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line class="{kind}" {ends}/>'


def _text(kind: str, at: Point, text: str) -> str:
    return f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}">{escape(text)}</text>'


def _drawn(line: Line, x: Axis, y: Axis) -> str:
    mean = smoothed(line.points)
    shown = line.points if mean is None else mean
    faint = "" if mean is None else f'<polyline class="raw" points="{_path(line.points, x, y)}"/>'
    end = f'cx="{x.place(shown[-1][0]):.1f}" cy="{y.place(shown[-1][1]):.1f}"'
    return (
        f'<g class="run {style_of(line.run)}" data-run="{line.run}">'
        f"<title>{escape(line.name)}</title>{faint}"
        f'<polyline points="{_path(shown, x, y)}"/><circle {end} r="2.5"/></g>'
    )


def style_of(run: int) -> str:
    """Classes of a run's lines: a colour, and dashes where the colours have come round."""
    return f"c{run % COLOURS}" + (f" dash{run // COLOURS % 3}" if run >= COLOURS else "")


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in thinned(points))
