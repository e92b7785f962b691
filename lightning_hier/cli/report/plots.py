"""Line plots as SVG, in colours that the page's style sheet sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lightning_hier.cli.report.smoothing import smoothed, thinned
from lightning_hier.cli.report.ticks import Unit, log_ticks, short, ticks, unit_of

COLOURS = 8
_WIDTH, _HEIGHT = 380.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 12.0, 40.0
# Above this ratio small values are invisible on a straight axis.
_LOGARITHMIC_FROM = 50.0

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

    """

    title: str
    lines: Sequence[Line]
    x_label: str
    x_kind: str = ""
    y_kind: str = ""


class _Axis:
    """Maps values to places on the page."""

    def __init__(
        self, values: Sequence[float], kind: str, start: float, end: float, *, from_zero: bool
    ) -> None:
        self.unit: Unit = unit_of(kind, max(map(abs, values)))
        low, high = min(values) / self.unit.size, max(values) / self.unit.size
        positive = low > 0
        self._log = not from_zero and positive and high / low > _LOGARITHMIC_FROM
        if from_zero:
            low = min(0.0, low)
        if high == low:
            low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
        elif not from_zero and not self._log:
            margin = 0.04 * (high - low)
            # Room below, but no negative values where there are none.
            low, high = max(low - margin, min(low, 0.0)), high + margin
        self._low, self._high = self._scale(low), self._scale(high)
        self._start, self._end = start, end
        self.ticks = log_ticks(low, high) if self._log else ticks(low, high)

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def tick_place(self, tick: float) -> float:
        share = (self._scale(tick) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def place(self, value: float) -> float:
        return self.tick_place(value / self.unit.size)


def svg(plot: Plot) -> str:
    """The plot, or a note where no run has anything to draw."""
    lines = [
        Line(line.run, line.name, [p for p in line.points if all(map(math.isfinite, p))])
        for line in plot.lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        title = f"<figcaption>{escape(plot.title)}</figcaption>"
        return f'<figure>{title}<p class="none">nothing logged</p></figure>'
    points = [point for line in lines for point in line.points]
    x = _Axis([p[0] for p in points], plot.x_kind, _LEFT, _WIDTH - _RIGHT, from_zero=True)
    y = _Axis([p[1] for p in points], plot.y_kind, _HEIGHT - _BOTTOM, _TOP, from_zero=False)
    of = f" ({y.unit.name})" if y.unit.name else ""
    title = f"<figcaption>{escape(plot.title + of)}</figcaption>"
    drawn = [*_grid(x, y, plot.x_label), *(_drawn(line, x, y) for line in lines)]
    return (
        f'<figure>{title}<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{escape(plot.title)} over {escape(plot.x_label)}">{"".join(drawn)}'
        "</svg></figure>"
    )


def _grid(x: _Axis, y: _Axis, x_label: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in y.ticks:
        at = y.tick_place(tick)
        parts.append(_rule("grid", (_LEFT, at), (right, at)))
        parts.append(_text("tick y", (_LEFT - 6, at + 3.5), short(tick)))
    for tick in x.ticks:
        at = x.tick_place(tick)
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


def _drawn(line: Line, x: _Axis, y: _Axis) -> str:
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


def _path(points: Sequence[Point], x: _Axis, y: _Axis) -> str:
    return " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in thinned(points))
