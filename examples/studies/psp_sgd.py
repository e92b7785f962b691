"""Table 1 of psp_sgd in small: servers whose replies are sometimes late.

    python -m examples.studies.psp_sgd

Real ranks, each stretched to the pace of a machine by itself. What is kept of the paper, whose 32
workers pull from 32 servers each, 0.16% of the replies late:

- A worker waits for a late reply in 5% of its steps, 1 - (1 - 0.0016)^32. With fewer servers a
  larger share of the replies must be late for that.
- The delay is as long as makes synchronous SGD take 200 / 140 of the time that it takes without
  delays: in a step it waits if any worker does.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

from examples.image.runs import Result, Settings
from examples.image.systems import SYSTEMS
from examples.studies.comparison import Claim
from examples.studies.page import options, write
from examples.studies.study import Experiment, Measure, Row, Rows, Table, fewer, reduction

PAPER_RANKS = 32
PAPER_SHARE = 0.0016
PAPER_SLOWDOWN = 199.97 / 139.95

# Of a forward, and of a step without delays (measured beforehand, on two cores for eight ranks).
PACE_S = 0.2
STEP_S = 0.26

# Running time in the paper, by the system that stands for it.
TABLE_1 = {"all": 199.97, "most": 164.97, "most_and_pull": 139.95, "few": 136.54}

BASE = Settings(
    system="all", ranks=8, epochs=12, decay_epochs=[8, 10], learning_rate=0.01, pace_seconds=PACE_S
)

SECONDS, ERRORS = "s of an epoch", "test error %"


def share_for(ranks: int) -> float:
    """Share of late replies with which a worker waits as often as in the paper."""
    undelayed = (1 - PAPER_SHARE) ** (PAPER_RANKS / ranks)
    return 1 - undelayed


def delay_for(ranks: int, step_s: float) -> float:
    """Seconds with which synchronous SGD is slowed down as in the paper."""
    undelayed = (1 - share_for(ranks)) ** (ranks * ranks)
    return step_s * (PAPER_SLOWDOWN - 1) / (1 - undelayed)


def epoch_s(result: Result) -> float:
    """Seconds of the median epoch: what else a machine does for a moment does not count."""
    ends = [0.0, *(seconds for seconds, _ in result.curve)]
    return statistics.median(after - before for before, after in pairwise(ends))


def late_replies(result: Result) -> float:
    """Share of the replies that were late, in %."""
    replies = sum(result.of_ranks("replies"))
    return 100.0 * sum(result.of_ranks("late_replies")) / replies if replies else 0.0


EXPERIMENT = Experiment(
    module="examples.image.run_systems",
    settings=Settings,
    result=Result,
    measures=(
        Measure(SECONDS, epoch_s, 2),
        Measure(ERRORS, lambda result: 100.0 * (1.0 - result.test_accuracy)),
        Measure("batches used %", lambda result: 100.0 * result.used_share),
        Measure("s waited", lambda result: statistics.mean(result.of_ranks("waited_s"))),
        Measure("late replies %", late_replies, 2),
    ),
    told=("ranks", "epochs", "batch_images", "learning_rate", "pace_seconds"),
)


def table(base: Settings) -> Table:
    """The systems with late replies, and synchronous SGD without."""
    late = replace(
        base,
        late_reply_share=share_for(base.ranks),
        late_reply_seconds=delay_for(base.ranks, STEP_S),
    )
    rows = [
        Row(
            (SYSTEMS[system].title, "yes"),
            replace(late, system=system),
            reduction(seconds, TABLE_1["all"]),
        )
        for system, seconds in TABLE_1.items()
    ]
    undelayed = Row((SYSTEMS["all"].title, "no"), base)
    chosen = f"A late reply comes {late.late_reply_seconds:.2f} s late."
    columns = ("system", "late replies")
    return Table("Table 1: late replies", columns, late, [undelayed, *rows], claims, chosen)


def claims(found: Rows) -> list[Claim]:
    """What section 4.3 says."""
    every, most, both, few = ((SYSTEMS[system].title, "yes") for system in TABLE_1)
    return [
        fewer(found, (most, every), "partial pushing takes less time"),
        fewer(found, (both, most), "partial pulling too takes less time still"),
        fewer(found, (every, both), "both cost accuracy (the paper: hardly)", ERRORS),
        fewer(found, (both, few), "too small c and b cost accuracy", ERRORS),
    ]


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "psp_sgd", data=None, jobs=1)
    base = replace(BASE, ranks=4, epochs=1, decay_epochs=[]) if told.quick else BASE
    write(EXPERIMENT, "PSP-SGD: Table 1 of psp_sgd in small", {"1": table(base)}, told)


if __name__ == "__main__":
    main()
