"""What the ways in which models travel do to learning: ``overlap=True`` and int8.

    python -m examples.studies.across --data FOLDER/an4_mfcc

With overlap models travel while the next block is trained, so what a block has made counts one
block late. In int8 a rank rounds what it sends and keeps the error for the next block; since a
rank alone sends nothing, 4 ranks play the workers there.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.bmuf import rate_factor
from examples.studies.page import options, write
from examples.studies.speech import DATA, EXPERIMENT, SpeechRun, with_data
from examples.studies.study import Claim, Row, Rows, Table, fewer
from examples.studies.two_tiered import BASE

SYSTEMS = {
    "model_averaging": "MA",
    "model_averaging_overlap": "MA, overlap",
    "bmuf_nbm": "BMUF",
    "bmuf_nbm_overlap": "BMUF, overlap",
    "bmuf_nbm_int8": "BMUF, int8",
    "bmuf_nbm_int8_overlap": "BMUF, int8, overlap",
}
WORKERS = 16
RANKS = 4
"""Of the rows in int8: so many roundings make up a model."""


def table(base: SpeechRun, *, shrink: int = 1) -> Table:
    """A row for each way.

    Args:
        base: what all runs share.
        shrink: by which the number of workers is divided, for a look.

    """
    rows = [
        Row(
            (title,),
            replace(
                base,
                system=system,
                workers=WORKERS // shrink,
                ranks=RANKS if "int8" in system else 1,
                rate_factor=rate_factor(system),
            ),
        )
        for system, title in SYSTEMS.items()
    ]
    title = f"{WORKERS // shrink} workers with and without overlap and int8"
    return Table(title, ("system",), base, rows, claims)


def claims(found: Rows) -> list[Claim]:
    """Whether a block's delay, and rounding, cost errors."""
    return [
        fewer(found, ((system,), (f"{system}, {way}",)), f"{way} costs {system} word errors")
        for system, way in (
            ("MA", "overlap"),
            ("BMUF", "overlap"),
            ("BMUF", "int8"),
            ("BMUF", "int8, overlap"),
        )
    ]


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "across", data=DATA, jobs=2)
    own = table(with_data(BASE, told), shrink=2 if told.quick else 1)
    write(EXPERIMENT, "What overlap and int8 do to learning", {"1": own}, told)


if __name__ == "__main__":
    main()
