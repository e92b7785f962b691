"""Tables 1 and 2 of bmuf_adam on small data: kinds of moments, and synchronisation periods.

    python -m examples.studies.bmuf_adam --data FOLDER

``FOLDER`` contains the data sets ``oldbooks`` (print) and ``copiste`` (handwriting). All systems
train on the same lines for the same number of epochs. BMUF-Adam has the learning rate of one
worker, as in the paper, and synchronous Adam four times that rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.ocr.run_systems import TITLES, Result, Settings, System
from examples.studies.comparison import Claim
from examples.studies.page import parse_options, write
from examples.studies.study import (
    Experiment,
    Measure,
    Row,
    Rows,
    Table,
    fewer,
    first_and_last,
    reduction,
)

WORKERS = (4, 8, 16)
PERIODS = (8, 16, 32)
SMALL_BETA1 = 0.5

SYNC_RATE = 4.0
"""Learning rate of synchronous Adam relative to that of one worker.

Of the factors 1, 2 and 4, the last had the fewest character errors on the valid split with the
first seed, on both data sets and with 4, 8 and 16 workers.
"""

_COMMON: dict[str, Any] = {
    "augment": False,
    "model_args": {"cells": 48, "channels": [8, 16, 32]},
}
SETS = {
    "oldbooks": Settings(system="adam", height=24, epochs=8, workers=1, **_COMMON),
    "copiste": Settings(
        system="adam", height=32, epochs=12, decay_epochs=3, workers=1, **_COMMON
    ),
}  # fmt: skip
KINDS = {"oldbooks": "print", "copiste": "handwriting"}

# The paper's character errors in % without a language model, on PRN-Test and HWR-Test. With one
# decimal, the resolution on PRN-Test is 5%.
ONE_WORKER = {"oldbooks": 1.9, "copiste": 5.3}
# The same with 16 workers, by kind of moments and beta1, and by system and period.
TABLE_1: dict[str, dict[tuple[System, float], float]] = {
    "oldbooks": {("average", 0.9): 1.9, ("corrected", 0.9): 1.9, ("corrected", 0.5): 1.9},
    "copiste": {("average", 0.9): 5.4, ("corrected", 0.9): 5.3, ("corrected", 0.5): 5.1},
}
TABLE_2: dict[str, dict[tuple[System, int], float]] = {
    "oldbooks": {("sync_adam", 1): 2.0, ("corrected", 8): 1.9, ("corrected", 16): 2.0,
                 ("corrected", 32): 1.9},
    "copiste": {("sync_adam", 1): 5.4, ("corrected", 8): 5.1, ("corrected", 16): 5.2,
                ("corrected", 32): 5.2},
}  # fmt: skip
_PAPER_WORKERS = 16

WORDS, CHARACTERS = "word errors %", "character errors %"

EXPERIMENT = Experiment(
    module="examples.ocr.run_systems",
    settings=Settings,
    result=Result,
    measures=(
        Measure(CHARACTERS, lambda result: 100.0 * result.test_cer),
        Measure(WORDS, lambda result: 100.0 * result.test_wer),
        Measure("steps of a worker", lambda result: result.steps, 0),
    ),
    reported=(
        "height", "model_args", "epochs", "decay_epochs", "batch_lines", "learning_rate",
        "block_size", "warmup_epochs",
    ),
)  # fmt: skip


def tables(bases: dict[str, Settings], *, shrink: int = 1) -> dict[str, Table]:
    """Return both tables for each data set.

    Args:
        bases: settings of one worker, by data set.
        shrink: divisor of the numbers of workers and the periods, for short runs.

    """
    numbers = [number // shrink for number in WORKERS]
    periods = [period // shrink for period in PERIODS]
    by_key = {}
    for name, base in bases.items():
        by_key[f"1_{name}"] = Table(
            f"Table 1, {KINDS[name]}: kinds of moments",
            ("moments", "beta1", "workers"),
            base,
            list(_by_moments(name, base, numbers, periods[0])),
            claims_1,
        )
    for name, base in bases.items():
        by_key[f"2_{name}"] = Table(
            f"Table 2, {KINDS[name]}: periods",
            ("system", "tau", "workers"),
            base,
            list(_by_period(name, base, numbers, periods)),
            claims_2,
        )
    return by_key


def _by_moments(name: str, base: Settings, numbers: list[int], period: int) -> Iterator[Row]:
    systems: tuple[System, ...] = ("average", "corrected")
    for system in systems:
        for beta1 in (0.9, SMALL_BETA1):
            for number in numbers:
                run = replace(base, system=system, workers=number, block_size=period, beta1=beta1)
                labels = (TITLES[system], f"{beta1:g}", str(number))
                errors = TABLE_1[name].get((system, beta1))
                yield Row(labels, run, _paper_reduction(name, errors, number))


def _by_period(name: str, base: Settings, numbers: list[int], periods: list[int]) -> Iterator[Row]:
    for number in numbers:
        rate = SYNC_RATE * base.learning_rate
        run = replace(base, system="sync_adam", workers=number, learning_rate=rate)
        labels = (TITLES["sync_adam"], "1", str(number))
        yield Row(labels, run, _paper_reduction(name, TABLE_2[name]["sync_adam", 1], number))
    for period in periods:
        for number in numbers:
            run = replace(
                base, system="corrected", workers=number, block_size=period, beta1=SMALL_BETA1
            )
            labels = ("BMUF-Adam", str(period), str(number))
            errors = TABLE_2[name].get(("corrected", period))
            yield Row(labels, run, _paper_reduction(name, errors, number))


def _paper_reduction(name: str, errors: float | None, workers: int) -> float | None:
    if errors is None or workers != _PAPER_WORKERS:
        return None
    return reduction(errors, ONE_WORKER[name])


def claims_1(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 3.1.2 about moments."""
    average, corrected = TITLES["average"], TITLES["corrected"]
    least, most = first_and_last(rows)
    return [
        fewer(
            rows,
            ((average, "0.9", least), (average, "0.9", most)),
            f"averaged moments degrade from {least} to {most} workers, beta1 = 0.9",
        ),
        fewer(
            rows,
            ((corrected, "0.9", most), (average, "0.9", most)),
            f"corrected moments have fewer errors than averaged ones with {most} workers, "
            "beta1 = 0.9",
        ),
        fewer(
            rows,
            ((corrected, "0.5", most), (corrected, "0.9", most)),
            f"beta1 = 0.5 helps corrected moments with {most} workers",
        ),
    ]


def claims_2(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 3.1.2 about systems."""
    bmuf_adam, synchronous = "BMUF-Adam", TITLES["sync_adam"]
    least, most = first_and_last(rows)
    shortest, *_, longest = (
        tau for name, tau, number in rows if (name, number) == (bmuf_adam, most)
    )
    return [
        fewer(
            rows,
            ((synchronous, "1", least), (synchronous, "1", most)),
            f"synchronous Adam degrades from {least} to {most} workers",
        ),
        fewer(
            rows,
            ((bmuf_adam, shortest, least), (bmuf_adam, shortest, most)),
            f"BMUF-Adam degrades from {least} to {most} workers (the paper: hardly)",
        ),
        fewer(
            rows,
            ((bmuf_adam, shortest, most), (synchronous, "1", most)),
            f"BMUF-Adam has fewer errors than synchronous Adam with {most} workers",
        ),
        fewer(
            rows,
            ((bmuf_adam, shortest, most), (bmuf_adam, longest, most)),
            f"tau = {shortest} has fewer errors than tau = {longest} with {most} workers",
        ),
    ]


def with_data(name: str, options: argparse.Namespace) -> Settings:
    """Return the settings of one worker on a data set, or on rendered lines without ``--data``."""
    base = replace(SETS[name], log_dir=str(options.out / "logs"))
    if options.quick:
        base = replace(base, epochs=1, decay_epochs=0)
    if options.data is None:
        lines = {"train_lines": 40, "valid_lines": 8, "test_lines": 8} if options.quick else {}
        return replace(base, corpus_args=lines)
    arguments: dict[str, Any] = {"path": str(Path(options.data) / name)}
    limit = {"max_lines": 200} if options.quick else {}
    return replace(base, corpus="manifest", corpus_args=arguments | limit)


def main() -> None:
    """Do the missing runs of the study, and write its report."""
    data = "folder of oldbooks and copiste (default: rendered lines)"
    options = parse_options(__doc__ or "", "bmuf_adam", data=data, jobs=2)
    names = list(SETS) if options.data else ["oldbooks"]
    bases = {name: with_data(name, options) for name in names}
    selected = tables(bases, shrink=4 if options.quick else 1)
    title = "BMUF-Adam: Tables 1 and 2 of bmuf_adam on small data"
    write(EXPERIMENT, title, selected, options)


if __name__ == "__main__":
    main()
