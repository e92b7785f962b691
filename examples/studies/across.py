"""What the ways in which models travel do to learning: ``overlap=True`` and int8.

    python -m examples.studies.across --data FOLDER/an4_mfcc

With overlap models travel while the next block is trained, so what a block has made counts one
block late. In int8 a rank rounds what it sends and keeps the error for the next block; since a
rank alone sends nothing, 4 ranks play the workers there.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies.bmuf import rate_factor
from examples.studies.comparison import Claim
from examples.studies.page import options, write
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
RANKS = 4
"""Of the rows in int8: so many roundings make up a model."""


def tables(base: SpeechRun, *, shrink: int = 1) -> dict[str, Table]:
    """One for BMUF, one for model averaging.

    Args:
        base: what all runs share.
        shrink: by which the number of workers is divided, for a look.

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
        ranks=RANKS if "int8" in system else 1,
        rate_factor=rate_factor(system),
    )
    return Row((name,), run)


def claims(found: Rows) -> list[Claim]:
    """Whether a block's delay, and rounding, cost errors."""
    (plain,), *others = found
    return [
        fewer(found, ((plain,), (other,)), f"{other.removeprefix(f'{plain}, ')} costs errors", kind)
        for (other,) in others
        for kind in (WORDS, FRAMES)
    ]


def main() -> None:
    """Run or go on with the study, then write its page."""
    told = options(__doc__ or "", "across", data=DATA, jobs=2)
    own = tables(with_data(BASE, told), shrink=2 if told.quick else 1)
    write(EXPERIMENT, "What overlap and int8 do to learning", own, told)


if __name__ == "__main__":
    main()
