"""Table 1 of two_stage_asgd in small: errors over the push period.

    python -m examples.studies.two_stage_asgd --data FOLDER/an4_mfcc

Real ranks: 4 on one host, in two groups of two. The mini-batch of a device stays the same and the
master's rate is eta / N, so that rates fall in proportion as the master's batch grows, as in the
paper; all runs begin with a pre-trained model. The speeds of Table 2 are measured over emulated
hosts by ``python -m benchmarks.two_stage_speed``.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.comparison import Claim
from examples.studies.page import options, write
from examples.studies.speech import DATA, EXPERIMENT, TWO_STAGE, SpeechRun, with_data
from examples.studies.study import Row, Rows, Table, fewer, reduction

# Character errors in % by N; the paper has no single device in this table.
TABLE_1 = {1: 35.3, 2: 35.2, 4: 35.3, 6: 35.4, 8: 36.3}

BASE = SpeechRun(
    system=TWO_STAGE,
    model="dnn",
    model_args={"hidden_dim": 256, "num_layers": 5},
    workers=4,
    ranks=4,
    group_size=2,
    push_period=1,
    learning_rate=0.1,
)


def table(base: SpeechRun) -> Table:
    """A row for each push period; N = 1 is the baseline."""
    rows = [
        Row((str(period),), replace(base, push_period=period), reduction(errors, TABLE_1[1]))
        for period, errors in TABLE_1.items()
    ]
    speeds = "Table 2, speeds: [two-stage ASGD](two_stage_asgd.md)."
    return Table("Table 1: push period", ("N",), base, rows, claims, speeds)


def claims(found: Rows) -> list[Claim]:
    """What section 4.1 says."""
    first, *_, middle, last = found
    return [
        fewer(found, (middle, last), f"errors rise sharply from N = {middle[0]} to {last[0]}"),
        fewer(
            found,
            (first, middle),
            f"errors rise from N = {first[0]} to {middle[0]} (the paper: hardly)",
        ),
    ]


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "two_stage_asgd", data=DATA, jobs=1)
    own = table(with_data(BASE, told))
    write(EXPERIMENT, "Two-stage ASGD: Table 1 of two_stage_asgd in small", {"1": own}, told)


if __name__ == "__main__":
    main()
