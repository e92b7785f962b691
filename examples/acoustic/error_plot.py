"""A picture of frame errors over the time of a run, a panel for each link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.acoustic.link_times import LinkTimes
from examples.acoustic.run_system import Result, Settings

# Distinct for the colour-blind too; the lines also differ in their marks.
_COLOURS = ("#0072B2", "#D55E00")
_MARKS = ("o", "s")


def plot_errors(results: Mapping[str, Result], times: LinkTimes, file: Path, *, title: str) -> None:
    """Draw the learning curves into a PNG file; its folder is made.

    Args:
        results: at most two, by their names in the legend.
        times: of steps over links.
        file: of the picture.
        title: above it.

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
            errors = [100 * share for _, share in result.curve]
            axes.plot(seconds, errors, color=colour, marker=mark, markersize=4, label=label)
            axes.axvline(seconds[-1], color=colour, linestyle=":", linewidth=1)
        axes.set(title=f"links of {link}", xlabel=f"seconds of training ({times.how})")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlim(left=0)  # after all is drawn, since it fixes the right end of all panels
    panels[0].set_ylabel("frame errors on the valid split, %")
    panels[-1].legend(loc="upper right", frameon=False)
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
