"""Measurements of the short benchmark on one rank, in one launch."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Any

from benchmarks.performance import between, synchronisation
from benchmarks.performance.job import Job, Steps, steps_for
from benchmarks.performance.on_rank import report
from benchmarks.performance.rank import train
from benchmarks.performance.synchronisation import Synchronisations, Variant
from benchmarks.performance.systems import named, set_up

SENDERS = ("ddp", "gtc", "bmuf_gtc", "bmuf_int8")
"""Systems whose bytes are counted."""

_PAIRS, _PAIR_STEPS = 4, 10
_SYNCHRONISATIONS = 7


def sent_bytes(job: Job, name: str) -> float:
    """Measure the bytes that the host of this rank sends in a step."""
    system = named(name)
    steps = steps_for(system, job.work, job.network, blocks=1)
    warm_up = min(steps.warm_up, 6) if system.block == 1 else steps.warm_up
    recorder = train(job, set_up(system), warm_up=warm_up, window=steps.window, adam=False)
    return sum(recorder.sent_bytes()) / steps.window


def run(job: Job) -> dict[str, Any]:
    """Run all measurements of the short benchmark."""
    variant = Variant(group_size=job.network.ranks_per_host)
    settings = Synchronisations(
        work=job.work,
        variants=[variant],
        repetitions=_SYNCHRONISATIONS,
        goodput_bytes=job.goodput_bytes,
        ranks_per_host=job.network.ranks_per_host,
        folder=job.folder,
    )
    steps = Steps(window=_PAIR_STEPS)
    return {
        "sent_bytes": {name: sent_bytes(job, name) for name in SENDERS},
        "synchronisation": synchronisation.measure(variant, settings),
        "between": [asdict(pair) for pair in between.measure(replace(job, steps=steps), _PAIRS)],
    }


def main() -> None:
    """Run the job of the first argument."""
    job = Job.decoded(sys.argv[1])
    report(job.folder, lambda: run(job))


if __name__ == "__main__":
    main()
