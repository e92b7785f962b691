"""A plot of accuracy over wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]

# A palette for readers with colour vision deficiency. Different markers help to tell curves apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v")


def plot_accuracy(
    curves: Mapping[str, Curve], file: Path, *, title: str, level: float | None = None
) -> None:
    """Plot the accuracy of each system over time, and write it to a PNG file.

    Args:
        curves: points (seconds, accuracy) by name in the legend, for at most five systems.
        file: PNG file. Its directory is created if it does not exist.
        title: title of the plot.
        level: accuracy from 0 to 1 that is marked by a horizontal line, or None.
    """
    import matplotlib

    matplotlib.use("Agg")  # does not require a display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, curve), colour, marker in zip(curves.items(), _COLOURS, _MARKERS, strict=False):
        seconds = [point[0] for point in curve]
        percent = [100 * point[1] for point in curve]
        axes.plot(seconds, percent, color=colour, marker=marker, markersize=4, label=name)
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
