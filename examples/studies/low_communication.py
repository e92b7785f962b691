"""Low-communication training: the loss per byte between hosts, and per second over slow links.

    python -m examples.studies.low_communication

All workers of a run are one batch of models (``examples.language.stacked``), as in ``language``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from examples.language.stacked.settings import Result, Settings
from examples.studies import low_communication_claims as claims
from examples.studies import low_communication_systems as systems
from examples.studies.link import Link, run_bytes
from examples.studies.low_communication_plots import draw_plots
from examples.studies.page import options, write
from examples.studies.study import Experiment, Measure, Row, Table

TOKENS = 51_200
"""Steps of all workers together."""
LINKS = (Link(1.0), Link(0.1), Link(0.01))

RATES = {4: 0.004, 16: 0.004, 64: 0.008}
"""Of DiLoCo and BMUF-Adam, by the number of workers."""
SYNC_RATES = {4: 0.004, 16: 0.008, 64: 0.008}
"""Of synchronous AdamW and model averaging, see ``language``."""


def _measured(of: Callable[[Settings, int, float], float]) -> Callable[[Result], float]:
    """A function of the settings and of what the whole run has sent."""

    def read(result: Result) -> float:
        run = Settings(**result.settings)
        return of(run, run.steps, _synchronised(result))

    return read


def _synchronised(result: Result) -> float:
    return result.curve[-1][1]


EXPERIMENT = Experiment(
    module="examples.language.stacked.train",
    settings=Settings,
    result=Result,
    measures=(
        Measure(claims.LOSS, lambda result: result.loss, 4),
        Measure("models sent", _measured(lambda *run: run_bytes(*run) / 4.0), 1),
        *(Measure(f"hours at {link.title}", _measured(link.hours), 2) for link in LINKS),
    ),
    told=("learning_rate", "warmup_share", "schedule"),
    together=16,
)


def tables(shrink: int = 1) -> dict[str, Table]:
    """All, the first ones first.

    Args:
        shrink: by which numbers of steps are divided, for a look.

    """
    steps = {workers: TOKENS // shrink // workers for workers in RATES}
    base = Settings(
        system="diloco", workers=16, steps=steps[16], block_size=systems.BLOCK, warmup_share=0.0
    )

    def made(rows: dict[tuple[str, ...], dict[str, Any]]) -> list[Row]:
        return [Row(labels, _with_rate(replace(base, **own))) for labels, own in rows.items()]

    baseline = _with_rate(replace(base, **systems.SYNC))
    few: systems.Changes = {"workers": 4, "steps": steps[4]}
    many: systems.Changes = {"workers": 64, "steps": steps[64]}
    return {
        "momentum": Table(
            "Outer momentum and block size, 16 workers",
            ("outer step", "block size"),
            baseline,
            made(systems.by_momentum()),
            claims.of_momentum,
        ),
        "delay": Table(
            "Fragments, delay and merge, 16 workers",
            ("outer step", "merge", "block, fragments, delay"),
            baseline,
            made(systems.by_delay()),
            claims.of_delay,
        ),
        "bytes": Table(
            "Rounded and sparse updates, 16 workers",
            ("outer step", "block size", "updates"),
            baseline,
            made(systems.by_updates()),
            claims.of_updates,
        ),
        "moments": Table(
            "BMUF-Adam with moments less often, 16 workers",
            ("system", "block size", "moments every"),
            baseline,
            made(systems.by_moments()),
            claims.of_moments,
        ),
        "qsr": Table(
            "Blocks by the learning rate, 16 workers, cosine",
            ("system", "block size"),
            replace(baseline, schedule="cosine"),
            made(systems.by_rule(RATES[16])),
            claims.of_rule,
        ),
        "warmup": Table(
            "Warm-up, 16 workers",
            ("system", "warm-up"),
            baseline,
            made(systems.by_warmup()),
            claims.of_warmup,
        ),
        "few": Table(
            "Four workers",
            ("system", "block size"),
            _with_rate(replace(base, **few, **systems.SYNC)),
            made({labels: {**few, **own} for labels, own in systems.of_few().items()}),
            claims.of_few,
        ),
        "many": Table(
            "64 workers",
            ("system", "block size"),
            _with_rate(replace(base, **many, **systems.SYNC)),
            made({labels: {**many, **own} for labels, own in systems.of_many().items()}),
            claims.of_many,
        ),
    }


def _with_rate(run: Settings) -> Settings:
    averages = run.system == "synchronous" or run.outer_momentum == 0.0
    tuned = SYNC_RATES if averages else RATES
    return replace(run, learning_rate=tuned[run.workers])


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "low_communication", data=None, jobs=1)
    chosen = tables(shrink=400 if told.quick else 1)
    write(EXPERIMENT, "Loss per byte and per second", chosen, told)
    asked = [chosen[key] for key in told.tables or chosen]
    rows = [run for table in asked for run in [table.baseline, *(row.run for row in table.rows)]]
    # The losses of another schedule are not those of these systems.
    drawn = [run for run in rows if run.schedule == "constant"]
    draw_plots(told.out, EXPERIMENT, drawn, LINKS, seeds=told.seeds)


if __name__ == "__main__":
    main()
