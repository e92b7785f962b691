"""Table 1 of two_stage_asgd on small data: errors over the push period.

    python -m examples.studies.two_stage_asgd --data FOLDER/an4_mfcc

The study has 4 ranks on one host, in two groups of two. As in the paper, the mini-batch of a device
is constant, and the learning rate of the master is eta / N, so that it falls as the master's batch
grows. All runs start from a pre-trained model. ``python -m benchmarks.two_stage_speed`` measures
the speeds of Table 2 over emulated hosts.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.comparison import Claim
from examples.studies.page import parse_options, write
from examples.studies.speech import DATA, EXPERIMENT, TWO_STAGE, SpeechRun, with_data
from examples.studies.study import Row, Rows, Table, fewer, reduction

# Character errors in % by N. The table of the paper has no row for a single device.
TABLE_1 = {1: 35.3, 2: 35.2, 4: 35.3, 6: 35.4, 8: 36.3}

BASE = SpeechRun(
    system=TWO_STAGE,
    model="dnn",
    model_args={"hidden_dim": 256, "num_layers": 5},
    workers=4,
    group_size=2,
    push_period=1,
    learning_rate=0.1,
)


def table(base: SpeechRun) -> Table:
    """Return the table, with a row for each push period. The baseline is N = 1."""
    rows = [
        Row((str(period),), replace(base, push_period=period), reduction(errors, TABLE_1[1]))
        for period, errors in TABLE_1.items()
    ]
    speeds = "Table 2, speeds: [two-stage ASGD](two_stage_asgd.md)."
    return Table("Table 1: push period", ("N",), base, rows, claims, speeds)


def claims(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 4.1."""
    first, *_, middle, last = rows
    return [
        fewer(rows, (middle, last), f"errors rise sharply from N = {middle[0]} to {last[0]}"),
        fewer(
            rows,
            (first, middle),
            f"errors rise from N = {first[0]} to {middle[0]} (the paper: hardly)",
        ),
    ]


def main() -> None:
    """Do the missing runs of the study, and write its report."""
    options = parse_options(__doc__ or "", "two_stage_asgd", data=DATA, jobs=1)
    tables = {"1": table(with_data(BASE, options))}
    title = "Two-stage ASGD: Table 1 of two_stage_asgd on small data"
    write(EXPERIMENT, title, tables, options)


if __name__ == "__main__":
    main()
