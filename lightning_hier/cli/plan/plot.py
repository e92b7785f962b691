"""The speedup of every strategy over the number of workers, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.cli.commands import INSTALL

_SIZE_INCHES, _DPI = (8, 5.5), 130


def draw(file: Path, title: str, curves: Mapping[str, Sequence[Prediction]]) -> None:
    """Write the picture; both axes are logarithmic.

    Args:
        file: where; its ending tells the format.
        title: above it.
        curves: predictions of each strategy, by number of workers.

    Raises:
        ValueError: matplotlib is not installed, or does not know the format.
        OSError: the file can't be written.

    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"{file} needs matplotlib: {INSTALL}, or leave out --png") from error
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for name, found in curves.items():
        axes.plot([own.ranks for own in found], [own.speedup for own in found], "o-", label=name,
                  markersize=3)  # fmt: skip
    workers = [own.ranks for own in next(iter(curves.values()))]
    axes.plot(workers, workers, color="grey", linestyle=":", label="linear")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="speedup", title=title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=_DPI)
