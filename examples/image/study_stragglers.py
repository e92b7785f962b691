"""Table 1 of psp_sgd in small: servers whose replies are sometimes late.

    python -m examples.image.study_stragglers --out outputs/study_stragglers

Every finished run is kept in ``runs.jsonl``, so the command goes on where it was stopped. The runs
of one seed follow each other, so that what else the machine does meets all systems alike.

What is kept of the paper, whose 32 workers pull from 32 servers each, 0.16% of the replies late:

- A worker waits for a late reply in 5% of its steps, 1 - (1 - 0.0016)^32. With fewer servers a
  larger share of the replies must be late for that.
- The delay is as long as makes synchronous SGD take 200 / 140 of the time that it takes without
  delays: in a step it waits if any worker does.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from examples.image.runs import Result, Settings
from examples.image.systems import SYSTEMS
from examples.run_store import RunStore
from examples.tables import markdown, spread

PAPER_RANKS = 32
PAPER_SHARE = 0.0016
PAPER_SLOWDOWN = 199.97 / 139.95

# Of a forward, and of a step without delays (measured beforehand, on two cores for eight ranks).
PACE_S = 0.2
STEP_S = 0.26
UNDISTURBED = "all"
COMPARED = ("all", "most", "most_and_pull", "few")
HEADER = (
    "system",
    "late replies",
    "seconds",
    "s of an epoch",
    "to no delays",
    "to c = all",
    "test error %",
    "batches used %",
    "s waited",
)

FULL = Settings(
    system="", ranks=8, epochs=12, decay_epochs=[8, 10], learning_rate=0.01, pace_seconds=PACE_S
)


def share_for(ranks: int) -> float:
    """Share of late replies with which a worker waits as often as in the paper."""
    undelayed = (1 - PAPER_SHARE) ** (PAPER_RANKS / ranks)
    return 1 - undelayed


def delay_for(ranks: int, step_s: float) -> float:
    """Seconds with which synchronous SGD is slowed down as in the paper."""
    undelayed = (1 - share_for(ranks)) ** (ranks * ranks)
    return step_s * (PAPER_SLOWDOWN - 1) / (1 - undelayed)


def runs_of(base: Settings) -> list[Settings]:
    """All systems with one seed, the one without delays first."""
    late = replace(
        base,
        late_reply_share=share_for(base.ranks),
        late_reply_seconds=delay_for(base.ranks, STEP_S),
    )
    return [
        replace(base, system=UNDISTURBED),
        *(replace(late, system=system) for system in COMPARED),
    ]


def epoch_s(results: Sequence[Result]) -> float:
    """Seconds of the median epoch: what else a machine does for a moment does not count."""
    ends = [[0.0, *(seconds for seconds, _ in result.curve)] for result in results]
    return statistics.median(after - before for run in ends for before, after in pairwise(run))


def table(results: Sequence[Sequence[Result]]) -> str:
    """A line for each system.

    Args:
        results: of each seed, in the order of ``runs_of``.
    """
    undelayed, synchronous, *_ = by_system = list(zip(*results, strict=True))
    return markdown(HEADER, [_line(own, undelayed, synchronous) for own in by_system])


def _line(
    own: Sequence[Result], undelayed: Sequence[Result], synchronous: Sequence[Result]
) -> tuple[str, ...]:
    replies = sum(sum(result.of_ranks("replies")) for result in own)
    late = sum(sum(result.of_ranks("late_replies")) for result in own)
    return (
        SYSTEMS[own[0].settings["system"]].title,
        f"{100 * late / replies:.2f}%" if replies else "none",
        spread([result.train_seconds for result in own], 1),
        f"{epoch_s(own):.2f}",
        f"{epoch_s(own) / epoch_s(undelayed):.2f}",
        f"{epoch_s(own) / epoch_s(synchronous):.2f}",
        spread([100 * (1 - result.test_accuracy) for result in own], 1),
        spread([100 * result.used_share for result in own], 1),
        spread([statistics.mean(result.of_ranks("waited_s")) for result in own], 1),
    )


def main() -> None:
    """Run or go on with the study, then print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/study_stragglers"))
    parser.add_argument("--ranks", type=int, default=FULL.ranks)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one epoch, one seed")
    options = parser.parse_args()
    base = replace(FULL, ranks=options.ranks, learning_rate=8 * FULL.learning_rate / options.ranks)
    seeds = options.seeds
    if options.quick:
        base, seeds = replace(base, epochs=1, decay_epochs=[]), 1
    store = RunStore(
        options.out, module="examples.image.run_systems", settings=Settings, result=Result
    )
    print(
        f"{base.ranks} ranks, forwards of {base.pace_seconds:g} s; "
        f"{100 * share_for(base.ranks):.2f}% of the replies are "
        f"{delay_for(base.ranks, STEP_S):.2f} s late.\n",
        flush=True,
    )
    results = [store.results(runs_of(replace(base, seed=seed))) for seed in range(seeds)]
    print(table(results))


if __name__ == "__main__":
    main()
