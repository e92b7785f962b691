"""Memory of a rank under PSP-SGD and under synchronous SGD, for the same model.

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
BYTES_OF_AN_ELEMENT = 4
# As many channels as ResNet-18 has: where the model is large beside its activations, the memory
# is what a strategy makes of it.
FULL = Settings(
    system="",
    model_args={"channels": [64, 128, 256, 512], "blocks": 2},
    epochs=2,
    batch_images=16,
    learning_rate=0.001,
)
HEADER = ("system", "peak, MiB", "before training, MiB", "more than before, models")


def table(results: Sequence[Sequence[Result]]) -> str:
    """A line for each system; ``results`` of each seed."""
    return markdown(HEADER, [_line(own) for own in zip(*results, strict=True)])


def _line(own: Sequence[Result]) -> tuple[str, ...]:
    model_bytes = BYTES_OF_AN_ELEMENT * own[0].parameters
    peak = [statistics.mean(result.of_ranks("peak_bytes")) for result in own]
    start = [statistics.mean(result.of_ranks("start_bytes")) for result in own]
    more = [(high - low) / model_bytes for high, low in zip(peak, start, strict=True)]
    return (
        SYSTEMS[own[0].settings["system"]].title,
        mean_and_deviation([value / 2**20 for value in peak], 0),
        mean_and_deviation([value / 2**20 for value in start], 0),
        mean_and_deviation(more, 1),
    )


def main() -> None:
    """Run or go on with the study, then print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/study_memory"))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    store = RunStore(
        options.out, module="examples.image.run_systems", settings=Settings, result=Result
    )
    results = []
    for seed in range(options.seeds):
        # One start each: the peak is that of a process.
        runs = [replace(FULL, system=system, seed=seed) for system in COMPARED]
        results.append([store.results([run])[0] for run in runs])
    model_mib = BYTES_OF_AN_ELEMENT * results[0][0].parameters / 2**20
    print(f"{FULL.ranks} ranks, a model of {model_mib:.0f} MiB.\n")
    print(table(results))


if __name__ == "__main__":
    main()
