"""Plot of the loss of each group over the steps of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from examples.elastic.step_log import Line

# Distinguishable for colour-blind readers. The lines also differ in their style.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_STYLES = ("-", "--", "-.", ":")

Points = tuple[list[float], list[float]]


def smoothed(lines: Sequence[Line], steps: int) -> list[Points]:
    """Return the mean losses over ``steps`` consecutive steps, for each process of a group.

    Returns:
        The steps and the losses of each process.

    """
    curves = []
    with_loss = [line for line in lines if line.loss is not None]
    for _, group in groupby(with_loss, key=lambda line: line.pid):
        process = list(group)
        parts = [process[start : start + steps] for start in range(0, len(process), steps)]
        middles = [fmean(line.step for line in part) for part in parts]
        losses = [fmean(line.loss for line in part if line.loss is not None) for part in parts]
        curves.append((middles, losses))
    return curves


def plot_losses(
    groups: Mapping[str, Sequence[Line]],
    file: Path,
    *,
    title: str,
    marks: Mapping[str, int],
    steps: int,
) -> None:
    """Plot the training losses into a PNG file. Its folder is created if it does not exist.

    Args:
        groups: logs of the groups by name, at most four.
        file: PNG file.
        title: title of the plot.
        marks: steps that are marked by a vertical line, by label.
        steps: number of steps over which losses are averaged.

    """
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, lines), colour, style in zip(groups.items(), _COLOURS, _STYLES, strict=False):
        for number, (middles, losses) in enumerate(smoothed(lines, steps)):
            label = name if number == 0 else None
            axes.plot(middles, losses, style, color=colour, label=label, linewidth=1.2)
    for name, step in marks.items():
        axes.axvline(step, color="0.4", linewidth=1, linestyle="--", zorder=0)
        axes.annotate(
            name,
            (step, 0.98),
            (4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            verticalalignment="top",
            fontsize="small",
            color="0.3",
        )
    axes.set(xlabel="step", ylabel=f"training loss, mean of {steps} steps", title=title)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
