"""Effect of overlap and int8 quantisation of the exchange across groups on the errors.

    python -m examples.studies.across --data FOLDER/an4_mfcc

With ``overlap=True``, the exchange overlaps with the training of the next block, and local updates
are applied one block later. In int8, each rank quantises its local update, with error feedback.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.bmuf import rate_factor
from examples.studies.comparison import Claim
from examples.studies.page import parse_options, write
from examples.studies.speech import DATA, EXPERIMENT, FRAMES, WORDS, SpeechRun, with_data
from examples.studies.study import Row, Rows, Table, fewer
from examples.studies.two_tiered import BASE

BMUF = {
    "bmuf_nbm": "BMUF",
    "bmuf_nbm_overlap": "BMUF, overlap",
    "bmuf_nbm_int8": "BMUF, int8",
    "bmuf_nbm_int8_overlap": "BMUF, int8, overlap",
}
AVERAGING = {"model_averaging": "MA", "model_averaging_overlap": "MA, overlap"}
WORKERS = 16


def tables(base: SpeechRun, *, shrink: int = 1) -> dict[str, Table]:
    """Return a table for BMUF and one for model averaging.

    Args:
        base: settings of all runs.
        shrink: divisor of the number of workers, for short runs.

    """
    workers = WORKERS // shrink
    return {
        key: Table(
            f"{title}, {workers} workers",
            ("system",),
            base,
            [_row(base, system, name, workers) for system, name in systems.items()],
            claims,
        )
        for key, title, systems in (("1", "BMUF", BMUF), ("2", "Model averaging", AVERAGING))
    }


def _row(base: SpeechRun, system: str, name: str, workers: int) -> Row:
    run = replace(
        base,
        system=system,
        workers=workers,
        rate_factor=rate_factor(system),
    )
    return Row((name,), run)


def claims(rows: Rows) -> list[Claim]:
    """Evaluate the claims that overlap and int8 cost errors."""
    (plain,), *others = rows
    return [
        fewer(
            rows, ((plain,), (other,)), f"{other.removeprefix(f'{plain}, ')} costs errors", measure
        )
        for (other,) in others
        for measure in (WORDS, FRAMES)
    ]


def main() -> None:
    """Do the missing runs of the study, and write its report."""
    options = parse_options(__doc__ or "", "across", data=DATA, jobs=2)
    selected = tables(with_data(BASE, options), shrink=2 if options.quick else 1)
    write(EXPERIMENT, "Effect of overlap and int8 on the errors", selected, options)


if __name__ == "__main__":
    main()
