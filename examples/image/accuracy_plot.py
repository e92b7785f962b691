"""A picture of accuracy over wall time, a line for each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]

# Distinct for the colour-blind too; the lines also differ in their marks.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MARKS = ("o", "s", "^", "D", "v")


def plot_accuracy(
    curves: Mapping[str, Curve], file: Path, *, title: str, level: float | None = None
) -> None:
    """Draw (seconds, accuracy) of each system into a PNG file; its folder is made.

    Args:
        curves: by the names in the legend, at most five.
        file: of the picture.
        title: above it.
        level: accuracy that is marked by a line, from 0 to 1.
    """
    import matplotlib

    matplotlib.use("Agg")  # there may be no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, curve), colour, mark in zip(curves.items(), _COLOURS, _MARKS, strict=False):
        seconds = [point[0] for point in curve]
        percent = [100 * point[1] for point in curve]
        axes.plot(seconds, percent, color=colour, marker=mark, markersize=4, label=name)
    if level is not None:
        axes.axhline(100 * level, color="0.4", linewidth=1, linestyle="--", zorder=0)
    axes.set(xlabel="wall time, s", ylabel="accuracy of the valid split, %", title=title)
    axes.set_xlim(left=0)
    axes.set_ylim(top=101)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
