"""Compare the memory of a rank with PSP-SGD and with synchronous SGD, for the same model.

python -m examples.image.study_memory --out outputs/study_memory
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.image.runs import Result, Settings
from examples.image.systems import SYSTEMS
from examples.run_store import RunStore
from examples.tables import markdown, mean_and_deviation

COMPARED = ("all_reduce", "all", "three_quarters_and_pull")
BYTES_PER_PARAMETER = 4
# The channels are those of ResNet-18. The model is large compared to the activations, so that the
# memory mainly depends on the strategy.
FULL = Settings(
    system="",
    model_args={"channels": [64, 128, 256, 512], "blocks": 2},
    epochs=2,
    batch_images=16,
    learning_rate=0.001,
)
HEADER = ("system", "peak, MiB", "before training, MiB", "more than before, models")


def table(results: Sequence[Sequence[Result]]) -> str:
    """Return a table with a row for each system.

    Args:
        results: results of each seed, in the order of ``COMPARED``.
    """
    return markdown(HEADER, [_row(seeds) for seeds in zip(*results, strict=True)])


def _row(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the row of the table for the results of a system with different seeds."""
    model_bytes = BYTES_PER_PARAMETER * results[0].parameters
    peak = [statistics.mean(result.of_ranks("peak_bytes")) for result in results]
    start = [statistics.mean(result.of_ranks("start_bytes")) for result in results]
    increase = [(high - low) / model_bytes for high, low in zip(peak, start, strict=True)]
    return (
        SYSTEMS[results[0].settings["system"]].title,
        mean_and_deviation([value / 2**20 for value in peak], 0),
        mean_and_deviation([value / 2**20 for value in start], 0),
        mean_and_deviation(increase, 1),
    )


def main() -> None:
    """Run or resume the study, then print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/study_memory"))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    store = RunStore(
        options.out, module="examples.image.run_systems", settings=Settings, result=Result
    )
    results = []
    for seed in range(options.seeds):
        # One launch per run, because the peak memory is that of a process.
        runs = [replace(FULL, system=system, seed=seed) for system in COMPARED]
        results.append([store.results([run])[0] for run in runs])
    model_mib = BYTES_PER_PARAMETER * results[0][0].parameters / 2**20
    print(f"{FULL.ranks} ranks, a model of {model_mib:.0f} MiB.\n")
    print(table(results))


if __name__ == "__main__":
    main()
