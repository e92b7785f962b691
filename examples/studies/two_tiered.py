"""Tables 1 to 3 of two_tiered_bmuf_gtc on small data: GTC, BMUF and BMUF_GTC, up to 128 workers.

    python -m examples.studies.two_tiered --data FOLDER/an4_mfcc

Each worker is a rank, and ranks share cores, so the study needs two cores and many hours. An epoch
of AN4 has only five or six steps with 128 workers. Therefore, blocks are shorter than the paper's
25 to 200 steps, by the same factor in all tables.
"""

from __future__ import annotations

from dataclasses import replace

from examples.studies import speed
from examples.studies.comparison import Claim
from examples.studies.page import parse_options, write
from examples.studies.speech import DATA, EXPERIMENT, SpeechRun, with_data
from examples.studies.study import Row, Rows, Table, fewer, first_and_last

SHORTER = 5
"""Divisor of the paper's block sizes."""

BASE = SpeechRun(
    system="one_worker",
    model="lstm",
    model_args={"hidden_dim": 128, "num_layers": 2},
    block_size=50 // SHORTER,
)

SYSTEMS = {"gtc": "GTC", "bmuf_nbm": "BMUF", "bmuf_gtc": "BMUF_GTC"}

TABLE_1 = {
    "gtc": {16: 0.4, 32: -1.4, 64: -2.8, 128: -15.6},
    "bmuf_nbm": {16: -0.8, 32: -3.5, 64: -8.9, 128: -9.6},
    "bmuf_gtc": {16: -0.5, 32: 0.1, 64: -3.2, 128: -4.7},
}
TABLE_2 = {
    "bmuf_nbm": {25: -8.1, 50: -9.6, 100: -13.7, 200: -16.6},
    "bmuf_gtc": {25: -4.4, 50: -4.7, 100: -6.4, 200: -7.5},
}
TABLE_3 = {1: -8.1, 2: -7.9, 4: -5.8, 8: -4.4}


def tables(base: SpeechRun, *, shrink: int = 1) -> dict[str, Table]:
    """Return the three tables.

    Args:
        base: settings of all runs.
        shrink: divisor of the numbers of workers, for short runs.

    """
    most_workers = 128 // shrink
    by_workers = [
        Row(
            (SYSTEMS[system], str(number // shrink)),
            replace(base, system=system, workers=number // shrink),
            paper,
        )
        for system, papers in TABLE_1.items()
        for number, paper in papers.items()
    ]
    by_block = [
        Row(
            (SYSTEMS[system], str(size // SHORTER)),
            replace(base, system=system, workers=most_workers, block_size=size // SHORTER),
            paper,
        )
        for system, papers in TABLE_2.items()
        for size, paper in papers.items()
    ]
    by_group = [
        Row(
            (str(size),),
            replace(
                base,
                system="bmuf_gtc" if size > 1 else "bmuf_nbm",
                workers=most_workers,
                group_size=size,
                block_size=25 // SHORTER,
            ),
            paper,
        )
        for size, paper in TABLE_3.items()
    ]
    return {
        "1": Table(
            "Table 1: number of workers",
            ("system", "workers"),
            base,
            by_workers,
            claims_1,
            speed.by_workers(SYSTEMS),
        ),
        "2": Table(
            "Table 2: block size",
            ("system", "block size"),
            base,
            by_block,
            claims_2,
            speed.by_block(SYSTEMS),
        ),
        "3": Table("Table 3: group size", ("group size",), base, by_group, claims_3),
    }


def claims_1(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 3.3.1."""
    numbers = list(dict.fromkeys(number for _, number in rows))
    least, second_most, most = numbers[0], numbers[-2], numbers[-1]
    return [
        fewer(rows, (("GTC", second_most), ("GTC", most)), "GTC degrades from 64 to 128 workers"),
        fewer(rows, (("BMUF", least), ("BMUF", most)), "BMUF degrades from 16 to 128 workers"),
        fewer(
            rows,
            (("BMUF_GTC", most), ("BMUF", most)),
            "BMUF_GTC has fewer errors than BMUF with 128 workers",
        ),
        fewer(
            rows,
            (("BMUF_GTC", most), ("GTC", most)),
            "BMUF_GTC has fewer errors than GTC with 128 workers",
        ),
    ]


def claims_2(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 3.3.2."""
    shortest, longest = first_and_last(rows)
    return [
        fewer(rows, (("BMUF", shortest), ("BMUF", longest)), "shorter blocks help BMUF"),
        fewer(
            rows,
            (("BMUF_GTC", shortest), ("BMUF_GTC", longest)),
            "shorter blocks help BMUF_GTC",
        ),
        fewer(
            rows,
            (("BMUF_GTC", longest), ("BMUF", shortest)),
            "BMUF_GTC with the longest blocks has fewer errors than BMUF with the shortest",
        ),
    ]


def claims_3(rows: Rows) -> list[Claim]:
    """Evaluate the claims of section 3.3.3."""
    smallest, largest = first_and_last(rows)
    return [fewer(rows, ((largest,), (smallest,)), "larger groups have fewer errors")]


def main() -> None:
    """Do the missing runs of the study, and write its report."""
    options = parse_options(__doc__ or "", "two_tiered", data=DATA, jobs=2)
    base = with_data(BASE, options)
    title = "Two tiers: Tables 1 to 3 of two_tiered_bmuf_gtc on small data"
    selected = tables(base, shrink=16 if options.quick else 1)
    write(EXPERIMENT, title, selected, options)


if __name__ == "__main__":
    main()
