"""Draw the picture at the top of the README from the committed reports.

python -m benchmarks.headline

Left: the duration of a training step over two link rates, for this package and its peers
(``docs/reports/performance/results.jsonl``). Right: the test loss of a small transformer
after as many steps as DDP (``docs/reports/defaults/runs.jsonl``).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.performance.results import REPORTED, Results

REPORTS = REPORTED.parent
PICTURE = REPORTS.parent / "assets" / "headline.png"

RATES = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
STEP_SYSTEMS = {
    "ddp": "Lightning DDP",
    "post_local_sgd": "torch PostLocalSGD",
    "torchft_diloco": "torchft DiLoCo",
    "bmuf": "bmuf",
    "bmuf_overlap": "bmuf, overlap",
    "bmuf_int8_overlap": "bmuf, int8, overlap",
}
LOSS_SYSTEMS = {
    "ddp": "DDP, 4 workers",
    "bmuf_adam": "bmuf_adam",
    "bmuf_gtc, groups of 2": "bmuf_gtc, groups of 2",
    "gtc": "gtc",
    "diloco": "diloco",
}
_PEERS = ("ddp",)
_PEER_COLOR, _OUR_COLORS = "0.5", ("#2a7f9e", "#e07b39")


def step_ratios(results: Results) -> dict[str, list[float]]:
    """Return the time of a step relative to that of the same ranks without communication.

    Returns:
        For each rate, the medians over the runs, in the order of ``STEP_SYSTEMS``.

    """
    return {
        rate: [
            statistics.median(results.to_limit(f"2 x 2, {rate}, emulated", system))
            for system in STEP_SYSTEMS
        ]
        for rate in RATES
    }


def loss_ratios(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the test loss relative to that of DDP with the same seed.

    Args:
        runs: lines of the report's ``runs.jsonl``.

    Returns:
        For each of ``LOSS_SYSTEMS``, the ratio for each seed.

    """
    shown = {"task": "language", "workers": 4, "steps": 300, "split": "test", "rate": None}
    losses = {
        (run["settings"]["system"], run["settings"]["seed"]): run["value"]
        for run in runs
        if shown.items() <= run["settings"].items()
    }
    seeds = [seed for system, seed in losses if system == "ddp"]
    return {
        system: [losses[system, seed] / losses["ddp", seed] for seed in seeds]
        for system in LOSS_SYSTEMS
    }


def draw(steps: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw both panels."""
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_steps(left, steps)
    _draw_losses(right, losses)
    return figure


def _draw_steps(axes: Axes, steps: Mapping[str, Sequence[float]]) -> None:
    height = 0.38
    for number, (rate, ratios) in enumerate(steps.items()):
        positions = [index + (number - 0.5) * height for index in range(len(ratios))]
        bars = axes.barh(positions, ratios, height, color=_OUR_COLORS[number], label=RATES[rate])
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
    axes.set_yticks(range(len(STEP_SYSTEMS)), list(STEP_SYSTEMS.values()))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(1.0, 200.0)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("duration of a step, multiple of that without communication")
    axes.set_title("24.3M parameters, 2 hosts of 2 ranks", fontsize="medium")
    axes.legend(loc="lower right", fontsize="small")


def _draw_losses(axes: Axes, losses: Mapping[str, Sequence[float]]) -> None:
    for position, (system, ratios) in enumerate(losses.items()):
        mean = statistics.mean(ratios)
        color = _PEER_COLOR if system in _PEERS else _OUR_COLORS[0]
        axes.errorbar(
            mean, position, xerr=statistics.stdev(ratios), fmt="o", color=color, capsize=3
        )
        axes.annotate(
            f"{mean:.3f}", (mean, position), (0, 7), textcoords="offset points", ha="center",
            fontsize="small",
        )  # fmt: skip
    axes.axvline(1.0, color="0.7", linewidth=0.8)
    axes.set_yticks(range(len(losses)), [LOSS_SYSTEMS[system] for system in losses])
    axes.set_ylim(len(losses) - 0.4, -0.8)
    axes.set_xlabel("test loss after 300 steps, multiple of DDP's")
    axes.set_title("transformer with AdamW, all defaults", fontsize="medium")


def main() -> None:
    """Draw the picture, and save it in the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--picture", type=Path, default=PICTURE)
    picture = parser.parse_args().picture
    lines = (REPORTS / "defaults" / "runs.jsonl").read_text().splitlines()
    figure = draw(step_ratios(Results.of(REPORTED)), loss_ratios([json.loads(x) for x in lines]))
    figure.savefig(picture, dpi=130)
    print(f"wrote {picture}")


if __name__ == "__main__":
    main()
