"""Plots of the report. Without matplotlib, a message is printed instead."""

from __future__ import annotations

import re
import statistics
from importlib.util import find_spec
from pathlib import Path

from benchmarks.performance.results import Results
from benchmarks.performance.systems import SYSTEMS

# Less is not shown, because links also carry packets of the system, such as ARP.
_LEAST_MB = 0.01

_COLOURS = {"limit": "#7f7f7f", "peer": "#4c78a8", "ours": "#e45756"}


def draw(results: Results, folder: Path) -> None:
    """Plot the time and the bytes of a step, one picture for each network and work."""
    if find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed (pip install -c constraints.txt '.[bench]')")
        return
    for kind in results.kinds:
        path = folder / f"steps_{_file_name(kind)}.png"
        _draw_kind(results, kind, path)
        print(f"wrote {path}")


def _draw_kind(results: Results, kind: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    measured = {
        system: list(by_run.values())
        for system in SYSTEMS
        if (by_run := results.figures(kind, system.name))
    }
    if not measured:
        return
    titles = [system.title.replace("`", "") for system in measured]
    colours = [_COLOURS[system.family] for system in measured]
    values = (
        ("ms a step", [[1e3 * run.step_s for run in runs] for runs in measured.values()]),
        (
            "MB a host and step",
            [[run.host_bytes / 1e6 for run in runs] for runs in measured.values()],
        ),
    )
    figure, both = plt.subplots(1, 2, figsize=(12, 0.36 * len(measured) + 1.2), sharey=True)
    for axes, (label, rows) in zip(both, values, strict=True):
        middles = [statistics.median(row) for row in rows]
        ranges = [
            [middle - min(row) for middle, row in zip(middles, rows, strict=True)],
            [max(row) - middle for middle, row in zip(middles, rows, strict=True)],
        ]
        axes.barh(titles, middles, xerr=ranges, color=colours)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=label, xlim=(max(min(middles) / 2.0, _LEAST_MB), None))
        axes.xaxis.set_major_formatter("{x:.2g}" if label.startswith("MB") else "{x:g}")
        axes.grid(axis="x", alpha=0.3)
    both[0].invert_yaxis()
    names = {"limit": "no communication", "peer": "peers", "ours": "lightning_hier"}
    bars = [Rectangle((0, 0), 1, 1, color=_COLOURS[family]) for family in names]
    both[1].legend(bars, names.values())
    figure.suptitle(kind, y=0.93)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
