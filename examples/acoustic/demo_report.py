"""Table, summary and plot of the two runs of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.acoustic.link_times import LinkTimes
from examples.acoustic.run_system import Result, Settings
from examples.tables import megabytes, percent

# Times of runs of one system differ by this fraction, so smaller differences are not significant.
_SAME_TIME = 0.05
# Colours that are distinct with colour blindness. Lines also differ in their markers.
_COLOURS = ("#0072B2", "#D55E00")
_MARKS = ("o", "s")


def header(times: LinkTimes) -> tuple[str, ...]:
    """Return the names of the columns. Those of links contain "measured" or "predicted"."""
    links = (f"s over {link} ({times.how})" for link in times.seconds)
    return ("strategy", "frame errors", "word errors", "MB in groups", "MB across", *links)


def row(label: str, result: Result, times: LinkTimes) -> tuple[str, ...]:
    """Return a row of the table.

    Args:
        label: name of the system.
        result: result of its run. All bytes of DDP are counted as sent across groups.
        times: times of steps over links.

    """
    is_ddp = result.settings["system"] == "ddp"
    inside, across = result.group_bytes, result.across_bytes
    return (
        label,
        percent(result.frame_error_rate),
        percent(result.word_error_rate),
        "-" if is_ddp else megabytes(inside),
        megabytes(inside if is_ddp else across),
        *(f"{times.seconds_of(link, result):.0f}" for link in times.seconds),
    )


def comparison(ours: Result, ddp: Result, times: LinkTimes) -> str:
    """Return a sentence on the faster system over each link, and on the use of DDP."""
    seconds = {
        link: (times.seconds_of(link, ours), times.seconds_of(link, ddp)) for link in times.seconds
    }
    faster = " and ".join(_over(link, *pair) for link, pair in seconds.items())
    errors = f"{percent(ours.frame_error_rate)} and {percent(ddp.frame_error_rate)} frame errors"
    slower = [link for link, (bmuf_s, ddp_s) in seconds.items() if _is_faster(ddp_s, bmuf_s)]
    equal = [link for link, (bmuf_s, ddp_s) in seconds.items() if not _is_faster(bmuf_s, ddp_s)]
    here = ""
    if slower:
        here = f", as here at {' and '.join(slower)}"
    elif equal:
        here = f", as here at {' and '.join(equal)}, where it is as fast and has fewer settings"
    return (
        f"At {errors} of bmuf and DDP after equal epochs, {faster} ({times.how}); DDP is the "
        "better choice on one host and wherever the network sends a gradient in a small part of a "
        f"step{here}."
    )


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


def _over(link: str, bmuf_s: float, ddp_s: float) -> str:
    times = f"({bmuf_s:.0f} s and {ddp_s:.0f} s)"
    if _is_faster(bmuf_s, ddp_s):
        return f"bmuf is {ddp_s / bmuf_s:.1f} times as fast as DDP over {link} {times}"
    if _is_faster(ddp_s, bmuf_s):
        return f"DDP is {bmuf_s / ddp_s:.1f} times as fast as bmuf over {link} {times}"
    return f"neither is faster by {100 * _SAME_TIME:.0f}% over {link} {times}"


def _is_faster(one: float, other: float) -> bool:
    return one * (1 + _SAME_TIME) <= other
