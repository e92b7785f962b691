"""The loss per byte between hosts, and per second over links, of all systems of a study."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.language.stacked.settings import Result, Settings
from examples.run_store import RunStore
from examples.studies.link import Link, run_bytes
from examples.studies.study import Experiment

Cost = Callable[[Settings, int, float], float]
"""Of a run until a step, after so many synchronisations."""

_BETA1 = 0.9
_CLEARLY = 0.005
"""Nats by which a dearer system must be better to be on the front."""


@dataclass(frozen=True)
class System:
    """A system and what came of it, one result for each seed."""

    run: Settings
    results: Sequence[Result]

    @property
    def loss(self) -> float:
        """At the end, mean over the seeds."""
        return statistics.mean(result.loss for result in self.results)

    def total(self, cost: Cost) -> float:
        """Cost of the whole run."""
        return self.curve(cost)[0][-1]

    def curve(self, cost: Cost) -> tuple[list[float], list[float]]:
        """Costs so far, and mean losses; the last one is that of the whole valid split."""
        points = self.results[0].curve
        costs = [cost(self.run, step, synchronised) for step, synchronised, _ in points]
        losses = zip(*([loss for *_, loss in result.curve] for result in self.results), strict=True)
        return costs, [*map(statistics.mean, losses)][:-1] + [self.loss]


def draw_plots(
    folder: Path,
    experiment: Experiment,
    runs: Iterable[Settings],
    links: Sequence[Link],
    seeds: int,
) -> None:
    """Write ``loss_per_byte.png`` and ``loss_per_second.png``.

    Args:
        folder: of the study, where the runs are kept.
        experiment: what its runs are.
        runs: the systems, with seed 0.
        links: a column of the second plot each.
        seeds: of each system.

    """
    store: RunStore[Any, Any] = RunStore(
        folder, module=experiment.module, settings=experiment.settings, result=experiment.result
    )
    by_workers: dict[int, list[System]] = {}
    for run in {repr(run.portable_settings()): run for run in runs}.values():
        results = store.results([replace(run, seed=seed) for seed in range(seeds)])
        by_workers.setdefault(run.workers, []).append(System(run, results))
    numbers = sorted(by_workers)
    figure, panels = _figure(1, len(numbers))
    for axes, workers in zip(panels, numbers, strict=True):
        _draw(axes, by_workers[workers], run_bytes)
        axes.set(xlabel="bytes sent per parameter", title=f"{workers} workers")
    figure.savefig(folder / "loss_per_byte.png", dpi=110)
    figure, panels = _figure(len(numbers), len(links))
    places = [(workers, link) for workers in numbers for link in links]
    for axes, (workers, link) in zip(panels, places, strict=True):
        _draw(axes, by_workers[workers], link.hours)
        axes.set(xlabel="hours", title=f"{workers} workers, {link.title}")
    figure.savefig(folder / "loss_per_second.png", dpi=110)


def name_of(run: Settings) -> str:
    """A short name of a system: outer learning rate and momentum, block size, and the rest."""
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
    """Those that are better than every cheaper one, from the cheapest to the dearest."""
    best: list[System] = []
    for system in sorted(systems, key=lambda one: (one.total(cost), one.loss)):
        if not best or system.loss < best[-1].loss - _CLEARLY:
            best.append(system)
    return best


def _draw(axes: Any, systems: Sequence[System], cost: Cost) -> None:
    """A point for the end of each system, and a curve for those on the front."""
    from matplotlib import colormaps

    best = front(systems, cost)
    colors = colormaps["turbo"].resampled(len(best) + 1)
    for number, system in enumerate(best):
        costs, losses = system.curve(cost)
        spread = [result.loss for result in system.results]
        around = statistics.stdev(spread) if len(spread) > 1 else 0.0
        color = colors(number)
        axes.plot(costs, losses, color=color, linewidth=0.9, alpha=0.6)
        label = f"{system.loss:.3f}  {name_of(system.run)}"
        axes.errorbar(
            costs[-1], system.loss, around, marker="o", capsize=3, color=color, label=label
        )
    others = [system for system in systems if system not in best]
    ends = [system.total(cost) for system in others]
    axes.scatter(ends, [system.loss for system in others], marker="x", s=18, color="0.55")
    low = min(system.loss for system in systems)
    first = min(system.total(cost) for system in systems)
    axes.set(xscale="log", ylim=(low - 0.04, low + 0.85), ylabel="validation loss")
    axes.set_xlim(left=first / 10)
    axes.grid(alpha=0.25, which="both")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize="x-small", frameon=False)


def _figure(rows: int, columns: int) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 5.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
