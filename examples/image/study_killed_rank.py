"""What a rank costs that is killed while PSP-SGD trains.

    python -m examples.image.study_killed_rank --out outputs/study_killed_rank

Four ranks, c = 3, with all blocks pulled (b = 100%) or three of them (b = 75%); once all ranks stay
to the end, once one of them is killed in the middle of an epoch.
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
# 19 steps in an epoch: in the middle of the fifth.
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
    """Without and with a death, of each system."""
    return [
        run
        for own in (replace(base, system=system) for system in COMPARED)
        for run in (own, replace(own, killed_rank=KILLED_RANK, killed_step=base.killed_step))
    ]


def table(results: Sequence[Sequence[Result]]) -> str:
    """A line for each system with and without a death; ``results`` of each seed."""
    return markdown(HEADER, [_line(own) for own in zip(*results, strict=True)])


def excess_s(result: Result) -> float:
    """By how much the longest epoch is longer than the median one; the first does not count."""
    epochs = [after - before for (before, _), (after, _) in pairwise(result.curve)]
    return max(epochs) - statistics.median(epochs)


def _line(own: Sequence[Result]) -> tuple[str, ...]:
    settings = Settings(**own[0].settings)
    place = "nobody"
    if settings.killed_rank is not None:
        place = f"rank {settings.killed_rank} at step {settings.killed_step}"
    return (
        SYSTEMS[settings.system].title,
        place,
        mean_and_deviation([result.train_seconds for result in own], 1),
        mean_and_deviation(
            [statistics.median(result.of_ranks("median_step_s")) for result in own], 2
        ),
        mean_and_deviation([max(result.of_ranks("longest_step_s")) for result in own], 1),
        mean_and_deviation([excess_s(result) for result in own], 1),
        ", ".join(sorted({str(len(result.ranks)) for result in own})),
        mean_and_deviation([100 * (1 - result.test_accuracy) for result in own], 1),
    )


def main() -> None:
    """Run or go on with the study, then print its table."""
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
        # One start each: the process group of a job that has lost a rank serves no other run.
        runs = runs_of(replace(base, seed=seed))
        results.append([store.results([run])[0] for run in runs])
    print(table(results))


if __name__ == "__main__":
    main()
