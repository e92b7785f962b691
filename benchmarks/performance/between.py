"""A step between two synchronisations beside the bare local step, in the same process.

As a module it is what a rank does: short fits of the bare step and of ours take turns, so that what
else the machine does meets both. The device takes no time here, so nothing hides behind it: all
that ours adds to a step counts, and is set against the step of the papers' devices.
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
    """What a step of one rank takes in two fits, one right after the other; medians.

    Attributes:
        bare_s: seconds of the bare step.
        ours_s: seconds of ours.
        bare_processor_s: processor time of the bare step, which hardly depends on other programs.
        ours_processor_s: likewise, of ours.

    """

    bare_s: float
    ours_s: float
    bare_processor_s: float
    ours_processor_s: float


def ratio(pairs: Sequence[Pair], step_s: float) -> float:
    """A step of ours against the bare one, where the device takes ``step_s`` for it."""
    added_s = statistics.median(pair.ours_s - pair.bare_s for pair in pairs)
    return (step_s + added_s) / step_s


def processor_ratio(pairs: Sequence[Pair], step_s: float) -> float:
    """The same, with the processor time that ours adds: blind to waiting, and to other programs."""
    added = (pair.ours_processor_s - pair.bare_processor_s for pair in pairs)
    return (step_s + statistics.median(added)) / step_s


def measure(job: Job, pairs: int) -> list[Pair]:
    """So many pairs of fits. Every rank takes part."""
    busy = replace(job, work=replace(job.work, step_s=0.0))
    window = job.steps.window
    never = _WARM_UP + window + 2
    found = []
    for turn in range(pairs):
        medians: dict[bool, tuple[float, float]] = {}
        for ours in (False, True) if turn % 2 else (True, False):
            setup = without_communication()
            if ours:
                setup = Setup(strategy=BMUFStrategy(block_size=never, warmup_steps=0))
            watch = train(busy, setup, warm_up=_WARM_UP, window=window, adam=False)
            processor_s = statistics.median(watch.processor_s())
            medians[ours] = (statistics.median(watch.steps_s()), processor_s)
        (bare_s, bare_processor_s), (ours_s, ours_processor_s) = medians[False], medians[True]
        found.append(
            Pair(
                bare_s=bare_s,
                ours_s=ours_s,
                bare_processor_s=bare_processor_s,
                ours_processor_s=ours_processor_s,
            )
        )
    return found


def main() -> None:
    """Do what the arguments say: a job and a number of pairs."""
    job, pairs = Job.decoded(sys.argv[1]), int(sys.argv[2])
    report(job.folder, lambda: [asdict(pair) for pair in measure(job, pairs)])


if __name__ == "__main__":
    main()
