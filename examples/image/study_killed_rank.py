"""Measure the cost of a killed rank in training by PSP-SGD.

    python -m examples.image.study_killed_rank --out outputs/study_killed_rank

Four ranks train with c = 3, and with b = 100% (all blocks are pulled) or b = 75% (three of them).
Each system runs twice: with all ranks, and with one rank that is killed in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from examples.image.lone_ranks import run_apart
from examples.image.runs import Result, Settings
from examples.image.systems import SYSTEMS
from examples.run_store import RunStore
from examples.tables import markdown, mean_and_deviation

COMPARED = ("three_quarters", "three_quarters_and_pull")
KILLED_RANK = 2
# In the middle of the fifth epoch. An epoch has 19 steps.
KILLED_STEP = 85
FULL = Settings(system="", epochs=8, decay_epochs=[5, 7], learning_rate=0.02, pace_seconds=0.1)
HEADER = (
    "system",
    "killed",
    "seconds",
    "median step, s",
    "longest step, s",
    "longest epoch - median, s",
    "ranks at the end",
    "test error %",
)


def runs_of(base: Settings) -> list[Settings]:
    """Return the runs of each system, without and with a killed rank."""
    return [
        run
        for complete in (replace(base, system=system) for system in COMPARED)
        for run in (
            complete,
            replace(complete, killed_rank=KILLED_RANK, killed_step=base.killed_step),
        )
    ]


def table(results: Sequence[Sequence[Result]]) -> str:
    """Return a table with a row for each system, without and with a killed rank.

    Args:
        results: results of each seed, in the order of ``runs_of``.
    """
    return markdown(HEADER, [_row(seeds) for seeds in zip(*results, strict=True)])


def excess_s(result: Result) -> float:
    """Return the difference of the longest and the median epoch, without the first epoch."""
    epochs = [after - before for (before, _), (after, _) in pairwise(result.curve)]
    return max(epochs) - statistics.median(epochs)


def _row(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the row of the table for the results of a run with different seeds."""
    settings = Settings(**results[0].settings)
    killed = "none"
    if settings.killed_rank is not None:
        killed = f"rank {settings.killed_rank} at step {settings.killed_step}"
    return (
        SYSTEMS[settings.system].title,
        killed,
        mean_and_deviation([result.train_seconds for result in results], 1),
        mean_and_deviation(
            [statistics.median(result.of_ranks("median_step_s")) for result in results], 2
        ),
        mean_and_deviation([max(result.of_ranks("longest_step_s")) for result in results], 1),
        mean_and_deviation([excess_s(result) for result in results], 1),
        ", ".join(sorted({str(len(result.ranks)) for result in results})),
        mean_and_deviation([100 * (1 - result.test_accuracy) for result in results], 1),
    )


def main() -> None:
    """Run or resume the study, then print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/study_killed_rank"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two epochs, one seed")
    options = parser.parse_args()
    base, seeds = replace(FULL, killed_step=KILLED_STEP), options.seeds
    if options.quick:
        base, seeds = replace(base, epochs=2, decay_epochs=[], killed_step=10), 1
    store = RunStore(
        options.out,
        module="examples.image.run_systems",
        settings=Settings,
        result=Result,
        launch=run_apart,
    )
    results = []
    for seed in range(seeds):
        # One launch per run, because a process group cannot be used after the loss of a rank.
        runs = runs_of(replace(base, seed=seed))
        results.append([store.results([run])[0] for run in runs])
    print(table(results))


if __name__ == "__main__":
    main()
