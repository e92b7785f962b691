"""Overhead of a step between two synchronisations, relative to a plain local step.

torchrun starts this module on every rank. Short fits with and without BMUF alternate in one
process, so that other load on the machine affects both. The emulated device takes no time, so that
no overhead overlaps with its computation. The overhead is related to the papers' step time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.performance.job import Job
from benchmarks.performance.on_rank import report
from benchmarks.performance.rank import train
from benchmarks.performance.systems import Setup, without_communication
from lightning_hier import BMUFStrategy

_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Median times of a step of one rank in two consecutive fits.

    Attributes:
        bare_s: seconds of a plain local step.
        ours_s: seconds of a step of BMUF.
        bare_processor_s: processor time of a plain local step. Other programs hardly affect it.
        ours_processor_s: processor time of a step of BMUF.

    """

    bare_s: float
    ours_s: float
    bare_processor_s: float
    ours_processor_s: float


def ratio(pairs: Sequence[Pair], step_s: float) -> float:
    """Return the time of a step of BMUF relative to a plain one of ``step_s`` seconds."""
    added_s = statistics.median(pair.ours_s - pair.bare_s for pair in pairs)
    return (step_s + added_s) / step_s


def processor_ratio(pairs: Sequence[Pair], step_s: float) -> float:
    """Return the ratio with the added processor time, which excludes waiting and other programs."""
    added = (pair.ours_processor_s - pair.bare_processor_s for pair in pairs)
    return (step_s + statistics.median(added)) / step_s


def measure(job: Job, pairs: int) -> list[Pair]:
    """Measure ``pairs`` pairs of fits. All ranks must call it."""
    busy = replace(job, work=replace(job.work, step_s=0.0))
    window = job.steps.window
    never = _WARM_UP + window + 2
    measured = []
    for index in range(pairs):
        medians: dict[bool, tuple[float, float]] = {}
        for ours in (False, True) if index % 2 else (True, False):
            setup = without_communication()
            if ours:
                setup = Setup(strategy=BMUFStrategy(block_size=never, warmup_steps=0))
            recorder = train(busy, setup, warm_up=_WARM_UP, window=window, adam=False)
            processor_s = statistics.median(recorder.processor_s())
            medians[ours] = (statistics.median(recorder.steps_s()), processor_s)
        (bare_s, bare_processor_s), (ours_s, ours_processor_s) = medians[False], medians[True]
        measured.append(
            Pair(
                bare_s=bare_s,
                ours_s=ours_s,
                bare_processor_s=bare_processor_s,
                ours_processor_s=ours_processor_s,
            )
        )
    return measured


def main() -> None:
    """Run the job of the first argument, with the number of pairs of the second one."""
    job, pairs = Job.decoded(sys.argv[1]), int(sys.argv[2])
    report(job.folder, lambda: [asdict(pair) for pair in measure(job, pairs)])


if __name__ == "__main__":
    main()
