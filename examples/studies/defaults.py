"""Validation measure of each strategy with its defaults, compared with DDP at equal steps.

python -m examples.studies.defaults --steps 300 --seeds 0 1 2
python -m examples.studies.defaults --steps 1000 --systems ddp bmuf_adam
python -m examples.studies.defaults --task acoustic --systems ddp bmuf --rates 0.7 0.35

All workers are virtual workers of one process. Runs whose results are in the results file are not
repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from examples.quiet import silence_lightning
from examples.studies.default_tasks import TASKS
from examples.tables import markdown, mean_and_deviation
from lightning_hier import (
    BMUF,
    GTC,
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)

# Earlier defaults had no warm-up ("as before").
_NO_WARMUP: dict[str, Any] = {"warmup_steps": 0}
# BMUF-Adam lowers the first beta to 0.5 by default.
_DDP_HALF_BETA1 = "ddp, first beta 0.5"
SYSTEMS: dict[str, Callable[[int], HierarchicalStrategy]] = {
    "ddp": lambda n: HierarchicalStrategy(group_size="world", virtual_workers=n),
    _DDP_HALF_BETA1: lambda n: HierarchicalStrategy(group_size="world", virtual_workers=n),
    "one worker": lambda n: HierarchicalStrategy(group_size="world"),
    "model_averaging": lambda n: ModelAveragingStrategy(virtual_workers=n),
    "bmuf": lambda n: BMUFStrategy(virtual_workers=n),
    "bmuf_adam": lambda n: BMUFAdamStrategy(virtual_workers=n),
    "bmuf_adam, groups of 2": lambda n: HierarchicalStrategy(
        group_size=2, block_sync=BMUFAdam(), virtual_workers=n
    ),
    "diloco": lambda n: DiLoCoStrategy(group_size=1, virtual_workers=n),
    "gtc": lambda n: GTCStrategy(virtual_workers=n),
    "bmuf_gtc, groups of 2": lambda n: BMUFGTCStrategy(group_size=2, virtual_workers=n),
    "bmuf_adam, as before": lambda n: BMUFAdamStrategy(
        block_size=50, local_beta1="keep", virtual_workers=n, **_NO_WARMUP
    ),
    "bmuf, as before": lambda n: BMUFStrategy(block_size=50, virtual_workers=n, **_NO_WARMUP),
    "gtc, as before": lambda n: GTCStrategy(density=0.01, virtual_workers=n, **_NO_WARMUP),
    "bmuf_gtc, as before": lambda n: HierarchicalStrategy(
        group_size=2,
        gradient_sync=GTC(density=0.01),
        block_sync=BMUF(block_size=50),
        virtual_workers=n,
        **_NO_WARMUP,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of a run, and its result.

    Attributes:
        task: a key of ``TASKS``.
        system: a key of ``SYSTEMS``.
        rate: learning rate. None: that of the task.
        workers: N, number of workers.
        steps: number of steps of a worker, or 0 if the task has a number of epochs.
        seed: seed of the initial model and of the order of the data.
        result: value of the task's measure, or None before the run.

    """

    task: str = "language"
    system: str
    rate: float | None = None
    workers: int
    steps: int
    seed: int
    result: float | None = None


def train(run: Run) -> Run:
    """Train, and return the run with its result."""
    pl.seed_everything(run.seed, verbose=False)
    torch.set_num_threads(1)
    task = TASKS[run.task]
    model, data = task.build(run.seed, run.rate, 0.5 if run.system == _DDP_HALF_BETA1 else 0.9)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=SYSTEMS[run.system](run.workers),
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **task.trainer_arguments(run.steps),
    )
    trainer.fit(model, data)
    return replace(run, result=float(trainer.callback_metrics[task.measure]))


def table(runs: Sequence[Run]) -> str:
    """Return mean and standard deviation over the seeds of each system and rate, in Markdown.

    Ratios are relative to the first system of the list, with the same seed.
    """
    first = (runs[0].system, runs[0].rate)
    baseline = {run.seed: run.result for run in runs if (run.system, run.rate) == first}
    rows = []
    for system, rate in dict.fromkeys((run.system, run.rate) for run in runs):
        completed = [
            (run.seed, run.result)
            for run in runs
            if (run.system, run.rate) == (system, rate) and run.result is not None
        ]
        results = [result for _, result in completed]
        ratios = [result / (baseline[seed] or 1.0) for seed, result in completed]
        name = system if rate is None else f"{system}, rate {rate:g}"
        rows.append((name, mean_and_deviation(results, 3), mean_and_deviation(ratios, 3)))
    return markdown(("system", TASKS[runs[0].task].unit, f"to {first[0]}"), rows)


def results_of(runs: Sequence[Run], file: Path) -> list[Run]:
    """Return the runs with their results. Do missing runs, and append their results to ``file``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    stored = [Run(**json.loads(line)) for line in file.read_text().splitlines()]
    completed = {replace(run, result=None): run for run in stored}
    for run in runs:
        if run not in completed:
            completed[run] = train(run)
            with file.open("a") as results:
                results.write(json.dumps(asdict(completed[run])) + "\n")
            print(f"{run.system}, seed {run.seed}: {completed[run].result:.3f}", flush=True)
    return [completed[run] for run in runs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--task", default="language", choices=list(TASKS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--rates", nargs="+", type=float, help="one learning rate for each system")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=300, help="steps of each worker; only for language"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("outputs/studies/defaults.jsonl"),
        help="results file (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    rates = options.rates or [None] * len(options.systems)
    if len(rates) != len(options.systems):
        parser.error(f"--rates takes {len(options.systems)} values, got {len(rates)}")
    silence_lightning()
    steps = options.steps if TASKS[options.task].epochs is None else 0
    runs = [
        Run(
            task=options.task,
            system=system,
            rate=rate,
            workers=options.workers,
            steps=steps,
            seed=seed,
        )
        for seed, (system, rate) in itertools.product(
            options.seeds, zip(options.systems, rates, strict=True)
        )
    ]
    print(table(results_of(runs, options.results)))


if __name__ == "__main__":
    main()
