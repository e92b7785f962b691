"""A picture of the loss of each group over the steps of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from examples.elastic.step_log import Line

# Distinct for the colour-blind too; the lines also differ in their style.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_STYLES = ("-", "--", "-.", ":")

Points = tuple[list[float], list[float]]


def smoothed(lines: Sequence[Line], steps: int) -> list[Points]:
    """Mean losses of as many consecutive steps, for each process of a group.

    Returns:
        For each process, the steps and the losses.

    """
    found = []
    trained = [line for line in lines if line.loss is not None]
    for _, process in groupby(trained, key=lambda line: line.pid):
        own = list(process)
        parts = [own[start : start + steps] for start in range(0, len(own), steps)]
        middles = [fmean(line.step for line in part) for part in parts]
        losses = [fmean(line.loss for line in part if line.loss is not None) for part in parts]
        found.append((middles, losses))
    return found


def plot_losses(
    groups: Mapping[str, Sequence[Line]],
    file: Path,
    *,
    title: str,
    marks: Mapping[str, int],
    steps: int,
) -> None:
    """Draw the training losses into a PNG file; its folder is created.

    Args:
        groups: logs of the groups by their names, at most four.
        file: file of the picture.
        title: text above it.
        marks: steps that are marked by a vertical line, by their names.
        steps: number of steps over which losses are averaged.

    """
    import matplotlib

    matplotlib.use("Agg")  # there may be no display
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
