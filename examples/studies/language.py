"""Claims about 4 to 64 workers on a tiny transformer, with enough steps for statistical power.

    python -m examples.studies.language

Each worker is a rank, and ranks share cores, so a run with 64 workers takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from examples.studies import language_claims as claims
from examples.studies.language_settings import Result, Settings
from examples.studies.page import parse_options, write
from examples.studies.study import Experiment, Measure, Row, Table

FEW, MANY = 4, (16, 64)
"""Numbers of workers."""
GROUPS = (1, 4, 16)
BLOCKS = (10, 30, 100, 300)
TOKENS = 51_200
"""Total number of steps of all workers in tables with equal tokens, 800 each for 64 workers."""
STEPS = 800
"""Number of steps of each worker in the table with equal steps."""

RATES = (0.004, 0.008, 0.016)
"""Learning rates of AdamW in the table ``rates``. Those of SGD are 100 times as large."""
RATE = 0.004
"""Learning rate of one worker, BMUF and BMUF-Adam."""
SYNC_RATES = {4: 0.004, 16: 0.008, 64: 0.008}
"""Learning rates of synchronous AdamW by number of workers, the best of the table ``rates``."""
AVERAGING_RATES = {4: 0.004, 16: 0.008, 64: 0.008}
"""Learning rates of model averaging by number of workers, the best of the table ``rates``."""
SGD_RATE = 0.4
SGD_SYNC_RATES = {16: 0.8, 64: 0.8}
SGD_AVERAGING_RATES = {16: 0.8, 64: 0.8}

_ADAM: dict[str, dict[str, Any]] = {
    claims.averaged(0.9): {"system": "bmuf_adam_average", "beta1": 0.9},
    claims.averaged(0.5): {"system": "bmuf_adam_average", "beta1": 0.5},
    claims.corrected(0.9): {"system": "bmuf_adam", "beta1": 0.9},
    claims.corrected(0.5): {"system": "bmuf_adam", "beta1": 0.5},
}
_BMUF: dict[str, dict[str, Any]] = {
    claims.CBM: {"system": "bmuf_cbm"},
    claims.NBM: {"system": "bmuf_nbm"},
}
_TUNED: dict[str, dict[str, Any]] = {
    claims.SYNC: {"system": "synchronous"},
    claims.MA: {"system": "model_averaging"},
}
SYSTEMS = _TUNED | _BMUF | _ADAM
_RATED = {
    name: SYSTEMS[name]
    for name in (claims.SYNC, claims.MA, claims.NBM, claims.averaged(0.5), claims.corrected(0.5))
} | {claims.FAST: SYSTEMS[claims.corrected(0.5)] | {"block_momentum": 0.9}}
BEST_RATES = {
    claims.SYNC: 0.008,
    claims.MA: 0.008,
    claims.averaged(0.5): 0.016,
    claims.corrected(0.5): 0.016,
    claims.FAST: 0.008,
}
"""The best of the learning rates 0.004, 0.008 and 0.016 for 64 workers, with the first seed."""


def _blocks(result: Result) -> float:
    run = Settings(**result.settings)
    return run.synchronised(run.steps)


EXPERIMENT = Experiment(
    module="examples.studies.language_runs",
    settings=Settings,
    result=Result,
    measures=(
        Measure(claims.LOSS, lambda result: result.loss, 4),
        Measure("steps of a worker", lambda result: result.settings["steps"], 0),
        Measure("blocks", _blocks, 0),
    ),
    reported=("optimizer", "learning_rate", "block_size", "warmup_share", "block_momentum"),
    runs_per_process=16,
)


def tables(shrink: int = 1) -> dict[str, Table]:
    """Return all tables, in order of importance.

    Args:
        shrink: divisor of the numbers of steps, for short runs.

    """
    tokens, steps = TOKENS // shrink, STEPS // shrink
    by_workers = {workers: tokens // workers for workers in (FEW, *MANY)}
    one_worker = Settings(system="one_worker", steps=tokens, learning_rate=RATE)
    base = _with_rate(replace(one_worker, system="synchronous", workers=16, steps=by_workers[16]))
    sgd = _with_rate(replace(base, optimizer="sgd"))
    many = {workers: by_workers[workers] for workers in MANY}
    return {
        "tokens": Table(
            "Equal tokens",
            ("system", "workers"),
            base,
            list(_by_workers(SYSTEMS, base, many)),
            claims.of_tokens,
            floor=-40.0,
        ),
        "best": Table(
            "Each at its best rate, 64 workers, equal tokens",
            ("system", "rate"),
            base,
            list(_at_best_rate(base, by_workers[64])),
            claims.of_best,
        ),
        "groups": Table(
            "Groups that share a model, 64 workers, equal tokens",
            ("system", "workers of a group"),
            base,
            list(_by_group(base, by_workers[64])),
            claims.of_groups,
        ),
        "steps": Table(
            "Equal steps of each worker",
            ("system", "workers"),
            replace(base, steps=steps),
            list(_by_workers(SYSTEMS, base, dict.fromkeys(by_workers, steps))),
            claims.of_steps,
        ),
        "blocks": Table(
            "Block sizes, 16 workers, equal tokens",
            ("system", "block size"),
            base,
            list(_by_block(base)),
            claims.of_blocks,
        ),
        "moments": Table(
            "Moments taken apart, 64 workers, equal tokens",
            ("moments", "changed"),
            base,
            list(_by_moments(base, by_workers[64])),
            claims.of_moments,
        ),
        "rates": Table(
            "Learning rates, equal tokens",
            ("system", "workers", "rate"),
            base,
            list(_by_rate(base, many)),
            lambda rows: [],
        ),
        "sgd": Table(
            "SGD, equal tokens",
            ("system", "workers"),
            sgd,
            list(_by_workers(_TUNED | _BMUF, sgd, many)),
            claims.of_sgd,
        ),
        "eta": Table(
            "Block momentum, equal tokens",
            ("system", "workers"),
            base,
            list(_by_eta(base, many)),
            claims.of_eta,
        ),
        "few": Table(
            "One worker and few, equal tokens",
            ("system", "workers"),
            base,
            [Row((claims.ALONE, "1"), one_worker), *_by_workers(SYSTEMS, base, by_workers)],
            claims.of_few,
        ),
    }


def _by_workers(
    systems: dict[str, dict[str, Any]], base: Settings, steps: dict[int, int]
) -> Iterator[Row]:
    for name, changes in systems.items():
        for workers, number in steps.items():
            run = replace(base, workers=workers, steps=number, **changes)
            yield Row((name, str(workers)), _with_rate(run))


def _at_best_rate(base: Settings, steps: int) -> Iterator[Row]:
    for name, best_rate in BEST_RATES.items():
        run = replace(base, workers=64, steps=steps, **_RATED[name])
        yield Row((name, f"{best_rate:g}"), replace(run, learning_rate=best_rate))


def _by_block(base: Settings) -> Iterator[Row]:
    for name in (claims.MA, claims.corrected(0.5)):
        for size in BLOCKS:
            run = replace(base, block_size=size, **SYSTEMS[name])
            yield Row((name, str(size)), _with_rate(run))


def _by_group(base: Settings, steps: int) -> Iterator[Row]:
    for name in (claims.NBM, claims.corrected(0.5)):
        for size in GROUPS:
            run = replace(base, workers=64, group_size=size, steps=steps, **SYSTEMS[name])
            yield Row((name, str(size)), _with_rate(run))


def _by_moments(base: Settings, steps: int) -> Iterator[Row]:
    variants: dict[str, dict[str, Any]] = {
        claims.UNCHANGED: {},
        claims.SHORT: {"beta2": 0.99},
        claims.SLOW: {"block_momentum": 0.9},
        claims.COLD: {"warmup_share": 0.0},
    }
    for title, changes in variants.items():
        for kind, name in (("averaged", "bmuf_adam_average"), ("corrected", "bmuf_adam")):
            run = _with_64_workers(base, steps, system=name, **changes)
            yield Row((kind, title), run)


def _with_64_workers(base: Settings, steps: int, **changes: Any) -> Settings:
    return _with_rate(replace(base, workers=64, steps=steps, beta1=0.5), **changes)


def _by_eta(base: Settings, steps: dict[int, int]) -> Iterator[Row]:
    for name in (claims.NBM, claims.corrected(0.5)):
        for kind, eta in ((claims.FROM_N, None), (claims.FIXED, 0.9)):
            for workers, number in steps.items():
                run = replace(base, workers=workers, steps=number, block_momentum=eta)
                yield Row((f"{name}, {kind}", str(workers)), _with_rate(run, **SYSTEMS[name]))


def _by_rate(base: Settings, steps: dict[int, int]) -> Iterator[Row]:
    for workers, number in sorted(steps.items(), reverse=True):
        for name, changes in _RATED.items():
            run = replace(base, workers=workers, steps=number, **changes)
            for learning_rate in RATES:
                labels = (name, str(workers), f"{learning_rate:g}")
                yield Row(labels, replace(run, learning_rate=learning_rate))
    for name in (claims.SYNC, claims.MA, claims.NBM):
        run = replace(base, workers=64, steps=steps[64], optimizer="sgd", **SYSTEMS[name])
        for learning_rate in RATES:
            labels = (f"{name}, SGD", "64", f"{100 * learning_rate:g}")
            yield Row(labels, replace(run, learning_rate=100 * learning_rate))


def _with_rate(run: Settings, **changes: Any) -> Settings:
    run = replace(run, **changes)
    return replace(run, learning_rate=rate(run))


def rate(run: Settings) -> float:
    """Return the learning rate of a system, tuned for synchronous training and model averaging."""
    sgd = run.optimizer == "sgd"
    tuned = {
        "synchronous": SGD_SYNC_RATES if sgd else SYNC_RATES,
        "model_averaging": SGD_AVERAGING_RATES if sgd else AVERAGING_RATES,
    }
    return tuned.get(run.system, {}).get(run.workers, SGD_RATE if sgd else RATE)


def main() -> None:
    """Do the missing runs of the study, and write its report."""
    options = parse_options(__doc__ or "", "language", data=None, jobs=1)
    selected = tables(shrink=100 if options.quick else 1)
    if options.quick:
        selected = {key: each.map(Settings.with_few_workers) for key, each in selected.items()}
    write(EXPERIMENT, "Many workers on a tiny transformer", selected, options)


if __name__ == "__main__":
    main()
