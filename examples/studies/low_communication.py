"""Low-communication training: loss over the bytes between hosts, and over time with slow links.

    python -m examples.studies.low_communication

Each worker is a rank, as in ``language``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from examples.studies import low_communication_claims as claims
from examples.studies import low_communication_systems as systems
from examples.studies.language_settings import Result, Settings
from examples.studies.link import Link, run_bytes
from examples.studies.low_communication_plots import draw_plots
from examples.studies.page import parse_options, write
from examples.studies.study import Experiment, Measure, Row, Table

TOKENS = 51_200
"""Total number of steps of all workers."""
LINKS = (Link(1.0), Link(0.1), Link(0.01))

RATES = {4: 0.004, 16: 0.004, 64: 0.008}
"""Learning rates of DiLoCo and BMUF-Adam, by number of workers."""
SYNC_RATES = {4: 0.004, 16: 0.008, 64: 0.008}
"""Learning rates of synchronous AdamW and model averaging, by number of workers."""


def _of_whole_run(cost: Callable[[Settings, int], float]) -> Callable[[Result], float]:
    """Return a function that computes a cost of the whole run from its result."""

    def cost_of(result: Result) -> float:
        run = Settings(**result.settings)
        return cost(run, run.steps)

    return cost_of


EXPERIMENT = Experiment(
    module="examples.studies.language_runs",
    settings=Settings,
    result=Result,
    measures=(
        Measure(claims.LOSS, lambda result: result.loss, 4),
        Measure("models sent", _of_whole_run(lambda *run: run_bytes(*run) / 4.0), 1),
        *(Measure(f"hours at {link.title}", _of_whole_run(link.hours), 2) for link in LINKS),
    ),
    reported=("learning_rate", "warmup_share", "schedule"),
    runs_per_process=16,
)


def tables(shrink: int = 1) -> dict[str, Table]:
    """Return all tables, in order of importance.

    Args:
        shrink: divisor of the numbers of steps, for short runs.

    """
    steps = {workers: TOKENS // shrink // workers for workers in RATES}
    base = Settings(
        system="diloco", workers=16, steps=steps[16], block_size=systems.BLOCK, warmup_share=0.0
    )

    def to_rows(changes: dict[tuple[str, ...], dict[str, Any]]) -> list[Row]:
        return [
            Row(labels, _with_rate(replace(base, **values))) for labels, values in changes.items()
        ]

    baseline = _with_rate(replace(base, **systems.SYNC))
    few: systems.Changes = {"workers": 4, "steps": steps[4]}
    many: systems.Changes = {"workers": 64, "steps": steps[64]}
    return {
        "momentum": Table(
            "Outer momentum and block size, 16 workers",
            ("outer step", "block size"),
            baseline,
            to_rows(systems.by_momentum()),
            claims.of_momentum,
        ),
        "delay": Table(
            "Fragments, delay and merge, 16 workers",
            ("outer step", "merge", "block, fragments, delay"),
            baseline,
            to_rows(systems.by_delay()),
            claims.of_delay,
        ),
        "bytes": Table(
            "Rounded and sparse updates, 16 workers",
            ("outer step", "block size", "updates"),
            baseline,
            to_rows(systems.by_updates()),
            claims.of_updates,
        ),
        "moments": Table(
            "BMUF-Adam with moments less often, 16 workers",
            ("system", "block size", "moments every"),
            baseline,
            to_rows(systems.by_moments()),
            claims.of_moments,
        ),
        "qsr": Table(
            "Blocks by the learning rate, 16 workers, cosine",
            ("system", "block size"),
            replace(baseline, schedule="cosine"),
            to_rows(systems.by_rule(RATES[16])),
            claims.of_rule,
        ),
        "warmup": Table(
            "Warm-up, 16 workers",
            ("system", "warm-up"),
            baseline,
            to_rows(systems.by_warmup()),
            claims.of_warmup,
        ),
        "few": Table(
            "Four workers",
            ("system", "block size"),
            _with_rate(replace(base, **few, **systems.SYNC)),
            to_rows({labels: {**few, **values} for labels, values in systems.of_few().items()}),
            claims.of_few,
        ),
        "many": Table(
            "64 workers",
            ("system", "block size"),
            _with_rate(replace(base, **many, **systems.SYNC)),
            to_rows({labels: {**many, **values} for labels, values in systems.of_many().items()}),
            claims.of_many,
        ),
    }


def _with_rate(run: Settings) -> Settings:
    averages = run.system == "synchronous" or run.outer_momentum == 0.0
    tuned = SYNC_RATES if averages else RATES
    return replace(run, learning_rate=tuned[run.workers])


def main() -> None:
    """Do the missing runs of the study, and write its report and plots."""
    options = parse_options(__doc__ or "", "low_communication", data=None, jobs=1)
    all_tables = tables(shrink=400 if options.quick else 1)
    if options.quick:
        all_tables = {key: each.map(Settings.with_few_workers) for key, each in all_tables.items()}
    write(EXPERIMENT, "Loss per byte and per second", all_tables, options)
    selected = [all_tables[key] for key in options.tables or all_tables]
    runs = [run for table in selected for run in [table.baseline, *(row.run for row in table.rows)]]
    # Losses with different schedules are not comparable.
    runs = [run for run in runs if run.schedule == "constant"]
    draw_plots(options.out, EXPERIMENT, runs, LINKS, seeds=options.seeds)


if __name__ == "__main__":
    main()
