"""What ``overlap=True`` does to learning: model averaging and BMUF with and without it.

    python -m examples.studies.overlap --data FOLDER/an4_mfcc

Models travel while the next block is trained, so what a block has made counts one block late.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.bmuf import AVERAGING_RATE
from examples.studies.page import options, with_data, write
from examples.studies.speech import SpeechRun
from examples.studies.study import Claim, Row, Rows, Study, Table, fewer
from examples.studies.two_tiered import BASE

SYSTEMS = {
    "model_averaging": "MA",
    "model_averaging_overlap": "MA, overlap",
    "bmuf_nbm": "BMUF",
    "bmuf_nbm_overlap": "BMUF, overlap",
}
WORKERS = (4, 16)


def table(base: SpeechRun, *, shrink: int = 1) -> Table:
    """The systems, with two numbers of workers.

    Args:
        base: what all runs share.
        shrink: by which numbers of workers are divided, for a look.

    """
    rows = [
        Row(
            (title, str(number // shrink)),
            replace(
                base,
                system=system,
                workers=number // shrink,
                rate_factor=AVERAGING_RATE if system.startswith("model") else 1.0,
            ),
        )
        for system, title in SYSTEMS.items()
        for number in WORKERS
    ]
    return Table("With and without overlap", ("system", "workers"), base, rows, claims)


def claims(found: Rows) -> list[Claim]:
    """Whether a block's delay costs errors."""
    numbers = list(dict.fromkeys(number for _, number in found))
    return [
        fewer(
            found,
            ((name, number), (f"{name}, overlap", number)),
            f"overlap costs {name} errors with {number} workers",
        )
        for name in ("MA", "BMUF")
        for number in numbers
    ]


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "overlap")
    study = Study(told.out, seeds=1 if told.quick else told.seeds, jobs=told.jobs)
    own = table(with_data(BASE, told), shrink=2 if told.quick else 1)
    write(study, "What overlap does to learning", "overlap", {"1": own}, told)


if __name__ == "__main__":
    main()
