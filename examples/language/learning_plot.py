"""Plot of bits per byte over the steps and over the bytes sent, with a line for each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.language.runs import Result

# Distinguishable for colour-blind readers. The lines also differ in their markers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "^", "D")


def plot_learning(results: Sequence[Result], file: Path, *, title: str) -> None:
    """Plot the learning curves into a PNG file. Its folder is created if it does not exist.

    Args:
        results: at most four results with distinct titles.
        file: PNG file.
        title: title of the figure.

    """
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    from matplotlib import pyplot

    figure, (over_steps, over_bytes) = pyplot.subplots(
        1, 2, figsize=(9, 4), sharey=True, layout="constrained"
    )
    for result, colour, marker in zip(results, _COLOURS, _MARKERS, strict=False):
        bits = [point.bits_per_byte for point in result.points]
        steps = [point.step for point in result.points]
        megabytes = [point.across_bytes / 1e6 for point in result.points]
        style = {"color": colour, "marker": marker, "markersize": 4, "label": result.title}
        over_steps.plot(steps, bits, **style)
        over_bytes.plot(megabytes, bits, **style)
    over_steps.set(xlabel="steps of each rank", ylabel="bits per byte of the valid split")
    over_steps.set_xlim(left=0)
    over_steps.xaxis.get_major_locator().set_params(integer=True)
    over_bytes.set(xlabel="MB sent across groups, all ranks (log scale)", xscale="log")
    # Plain numbers, also at 2 and 5, because the curves may span less than a power of ten.
    over_bytes.xaxis.set_major_formatter("{x:g}")
    over_bytes.xaxis.set_minor_formatter(_only_2_and_5)
    for axes in (over_steps, over_bytes):
        axes.grid(alpha=0.3, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    over_steps.legend(loc="upper right", frameon=False)
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _only_2_and_5(value: float, position: int) -> str:
    return f"{value:g}" if f"{value:.0e}"[0] in "25" else ""
