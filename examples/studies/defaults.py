"""Validation measure of each strategy with its defaults, compared with DDP at equal steps.

python -m examples.studies.defaults --steps 300 --seeds 0 1 2
python -m examples.studies.defaults --steps 1000 --systems ddp bmuf_adam
python -m examples.studies.defaults --task acoustic --systems ddp bmuf --rates 0.7 0.35

Each worker is a rank. Runs whose results are in the output folder are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from examples.run_store import RunStore
from examples.studies.default_runs import SYSTEMS, Result, Run
from examples.studies.default_tasks import TASKS
from examples.tables import markdown, mean_and_deviation


def table(results: Sequence[Result]) -> str:
    """Return mean and standard deviation over the seeds of each system and rate, in Markdown.

    Ratios are relative to the first system of the list, with the same seed.
    """
    runs = [(Run(**result.settings), result.value) for result in results]
    by_system: dict[tuple[str, float | None], dict[int, float]] = {}
    for run, value in runs:
        by_system.setdefault((run.system, run.rate), {})[run.seed] = value
    (first, _), *_ = by_system
    baseline = next(iter(by_system.values()))
    rows = []
    for (system, rate), values in by_system.items():
        ratios = [value / baseline[seed] for seed, value in values.items()]
        name = system if rate is None else f"{system}, rate {rate:g}"
        of_seeds = mean_and_deviation([*values.values()], 3)
        rows.append((name, of_seeds, mean_and_deviation(ratios, 3)))
    return markdown(("system", TASKS[runs[0][0].task].unit, f"to {first}"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--task", default="language", choices=list(TASKS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--rates", nargs="+", type=float, help="one learning rate for each system")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="steps of each worker; only for language and recurrent",
    )
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("outputs/studies/defaults"),
        help="folder of the results (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    rates = options.rates or [None] * len(options.systems)
    if len(rates) != len(options.systems):
        parser.error(f"--rates takes {len(options.systems)} values, got {len(rates)}")
    steps = options.steps if TASKS[options.task].epochs is None else 0
    runs = [
        Run(
            task=options.task,
            system=system,
            rate=rate,
            workers=options.workers,
            steps=steps,
            seed=seed,
            split=options.split,
        )
        for seed, (system, rate) in itertools.product(
            options.seeds, zip(options.systems, rates, strict=True)
        )
    ]
    store = RunStore(
        options.out, module="examples.studies.default_runs", settings=Run, result=Result
    )
    print(table(store.results(runs)))


if __name__ == "__main__":
    main()
