"""Plots of the loss over the bytes between hosts, and over time, for all systems of a study."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.run_store import RunStore
from examples.studies.language_settings import Result, Settings
from examples.studies.link import Link, run_bytes
from examples.studies.study import Experiment

Cost = Callable[[Settings, int], float]
"""Cost of a run from its settings and the number of steps."""

_BETA1 = 0.9
_MIN_IMPROVEMENT = 0.005
"""Nats by which a system must be better than all cheaper ones to be on the Pareto front."""


@dataclass(frozen=True)
class System:
    """A system and its results, one for each seed."""

    run: Settings
    results: Sequence[Result]

    @property
    def loss(self) -> float:
        """Final loss, the mean over the seeds."""
        return statistics.mean(result.loss for result in self.results)

    def total(self, cost: Cost) -> float:
        """Return the cost of the whole run."""
        return self.curve(cost)[0][-1]

    def curve(self, cost: Cost) -> tuple[list[float], list[float]]:
        """Return the costs so far and the mean losses over the run."""
        costs = [cost(self.run, step) for step, _ in self.results[0].curve]
        losses = zip(*([loss for _, loss in result.curve] for result in self.results), strict=True)
        return costs, [*map(statistics.mean, losses)]


def draw_plots(
    folder: Path,
    experiment: Experiment,
    runs: Iterable[Settings],
    links: Sequence[Link],
    seeds: int,
) -> None:
    """Write ``loss_per_byte.png`` and ``loss_per_second.png``.

    Args:
        folder: folder of the study, with its results.
        experiment: kind of the runs.
        runs: settings of the systems, with seed 0.
        links: links of the second plot, one for each column.
        seeds: number of seeds of each system.

    """
    store: RunStore[Any, Any] = RunStore(
        folder, module=experiment.module, settings=experiment.settings, result=experiment.result
    )
    by_workers: dict[int, list[System]] = {}
    for run in {repr(run.portable_settings()): run for run in runs}.values():
        results = store.results([replace(run, seed=seed) for seed in range(seeds)])
        by_workers.setdefault(run.workers, []).append(System(run, results))
    worker_counts = sorted(by_workers)
    figure, panels = _figure(1, len(worker_counts))
    for axes, workers in zip(panels, worker_counts, strict=True):
        _draw(axes, by_workers[workers], run_bytes)
        axes.set(xlabel="bytes sent per parameter", title=f"{workers} workers")
    figure.savefig(folder / "loss_per_byte.png", dpi=110)
    figure, panels = _figure(len(worker_counts), len(links))
    cells = [(workers, link) for workers in worker_counts for link in links]
    for axes, (workers, link) in zip(panels, cells, strict=True):
        _draw(axes, by_workers[workers], link.hours)
        axes.set(xlabel="hours", title=f"{workers} workers, {link.title}")
    figure.savefig(folder / "loss_per_second.png", dpi=110)


def name_of(run: Settings) -> str:
    """Return a short name: outer learning rate and momentum, block size, and other settings."""
    if run.system == "synchronous":
        return "synchronous"
    parts = [f"H {run.block_size}"]
    if run.across_density < 1.0:
        parts.append(f"{run.across_density:.0%}")
    if run.across_dtype != "same":
        parts.append(run.across_dtype)
    if run.fragments > 1:
        parts.append(f"{run.fragments} fragments")
    if run.overlap:
        merge = "" if run.merge == "progress" else f", merge {run.merge}"
        parts.append(f"delay {run.overlap}{merge}")
    if run.moments_every > 1:
        parts.append(f"moments every {run.moments_every}")
    if run.warmup_share:
        parts.append(f"warm-up {run.warmup_share:.0%}")
    momentum = "N" if run.outer_momentum is None else f"{run.outer_momentum:g}"
    if run.exchanges_moments:
        return f"BMUF-Adam, {', '.join(parts)}"
    if run.beta1 != _BETA1:
        parts.append(f"beta1 {run.beta1:g}")
    return f"{run.outer_lr:g}/{momentum}, {', '.join(parts)}"


def front(systems: Iterable[System], cost: Cost) -> list[System]:
    """Return the systems on the Pareto front of cost and loss, in order of cost."""
    best: list[System] = []
    for system in sorted(systems, key=lambda one: (one.total(cost), one.loss)):
        if not best or system.loss < best[-1].loss - _MIN_IMPROVEMENT:
            best.append(system)
    return best


def _draw(axes: Any, systems: Sequence[System], cost: Cost) -> None:
    """Draw a point for the end of each system, and a curve for those on the Pareto front."""
    from matplotlib import colormaps

    best = front(systems, cost)
    colors = colormaps["turbo"].resampled(len(best) + 1)
    for index, system in enumerate(best):
        costs, losses = system.curve(cost)
        final_losses = [result.loss for result in system.results]
        deviation = statistics.stdev(final_losses) if len(final_losses) > 1 else 0.0
        color = colors(index)
        axes.plot(costs, losses, color=color, linewidth=0.9, alpha=0.6)
        label = f"{system.loss:.3f}  {name_of(system.run)}"
        axes.errorbar(
            costs[-1], system.loss, deviation, marker="o", capsize=3, color=color, label=label
        )
    others = [system for system in systems if system not in best]
    totals = [system.total(cost) for system in others]
    axes.scatter(totals, [system.loss for system in others], marker="x", s=18, color="0.55")
    lowest_loss = min(system.loss for system in systems)
    lowest_cost = min(system.total(cost) for system in systems)
    axes.set(xscale="log", ylim=(lowest_loss - 0.04, lowest_loss + 0.85), ylabel="validation loss")
    axes.set_xlim(left=lowest_cost / 10)
    axes.grid(alpha=0.25, which="both")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize="x-small", frameon=False)


def _figure(rows: int, columns: int) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 5.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
