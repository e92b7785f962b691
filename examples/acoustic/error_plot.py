"""Plot of frame errors over training time, with a panel for each link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.acoustic.link_times import LinkTimes
from examples.acoustic.run_system import Result, Settings

# Colours that are distinct with colour blindness. Lines also differ in their markers.
_COLOURS = ("#0072B2", "#D55E00")
_MARKS = ("o", "s")


def plot_errors(results: Mapping[str, Result], times: LinkTimes, file: Path, *, title: str) -> None:
    """Plot the learning curves to a PNG file, and create its folder.

    Args:
        results: at most two results, by their names in the legend.
        times: times of steps over links.
        file: file of the plot.
        title: title of the plot.

    """
    import matplotlib

    matplotlib.use("Agg")  # there may be no display
    from matplotlib import pyplot

    shared: dict[str, Any] = {
        "sharex": True,
        "sharey": True,
        "squeeze": False,
        "layout": "constrained",
    }
    figure, [panels] = pyplot.subplots(1, len(times.seconds), figsize=(9, 4), **shared)
    for link, axes in zip(times.seconds, panels, strict=True):
        for (label, result), colour, mark in zip(results.items(), _COLOURS, _MARKS, strict=False):
            settings = Settings(**result.settings)
            seconds = [times.run_seconds(link, settings, steps) for steps, _ in result.curve]
            errors = [100 * error_rate for _, error_rate in result.curve]
            axes.plot(seconds, errors, color=colour, marker=mark, markersize=4, label=label)
            axes.axvline(seconds[-1], color=colour, linestyle=":", linewidth=1)
        axes.set(title=f"links of {link}", xlabel=f"seconds of training ({times.how})")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlim(left=0)  # after the curves, because it also fixes the right limits
    panels[0].set_ylabel("frame errors on the valid split, %")
    panels[-1].legend(loc="upper right", frameon=False)
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
