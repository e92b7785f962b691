"""Claims about low-communication training, for ``low_communication``."""

from __future__ import annotations

from typing import Literal

from examples.studies.comparison import Claim
from examples.studies.study import Rows, fewer

LOSS = "loss"
SYNC, ADAM, RULE = "synchronous", "BMUF-Adam", "QSR, 10 to 100"
FIXED, FROM_N, LESS, MEAN = "0.7, 0.9", "0.7, from N", "0.7, 0.5", "1, 0"
SHORT = "0.7, 0.9, beta1 0.5"
"""Labels of outer learning rate and momentum."""
PROGRESS, HALF, LOCAL = "progress", "0.5", "1.0"
WHOLE, INT8, INT4 = "float32", "int8", "int4"
LATE, WARM = "a block late", "warm-up 10%"
STREAMED = "int4, 4 fragments, 25 steps late"

RARELY = f"{ADAM}, int4, moments every 6"


def blocks(name: str, size: int) -> str:
    """Return the label of a system with its block size."""
    return f"{name}, blocks of {size}"


def sparse(density: float, dtype: str = INT4) -> str:
    """Return the label of sparse updates."""
    return f"{density:.0%} in {dtype}"


UPDATES: tuple[tuple[str, float, Literal["same", "int8", "int4"]], ...] = (
    (WHOLE, 1.0, "same"),
    (INT8, 1.0, "int8"),
    (INT4, 1.0, "int4"),
    (sparse(0.1), 0.1, "int4"),
    (sparse(0.02), 0.02, "int4"),
)
"""Label, density and dtype of updates."""


def of_momentum(rows: Rows) -> list[Claim]:
    """Evaluate claims about the outer momentum and the block size."""
    claims = [
        fewer(rows, ((FROM_N, size), (FIXED, size)), f"momentum from N is better, blocks of {size}")
        for size in ("10", "50")
    ]
    claims += [
        fewer(rows, ((one, size), (FIXED, size)), f"{text} is better, blocks of {size}")
        for one, text in ((LESS, "momentum 0.5"), (SHORT, "beta1 0.5"))
        for size in ("10", "50")
    ]
    claims += [
        fewer(rows, ((FIXED, size), (MEAN, size)), f"DiLoCo is better than the mean, {size}")
        for size in ("10", "50")
    ]
    return claims + [
        fewer(rows, ((FIXED, one), (FIXED, other)), f"blocks of {other} cost over {one}")
        for one, other in (("10", "50"), ("50", "100"))
    ]


def of_delay(rows: Rows) -> list[Claim]:
    """Evaluate claims about fragments, delays and merges."""
    one_fragment = (FIXED, PROGRESS, "50, 1, 0")
    claims = [fewer(rows, (one_fragment, (FIXED, PROGRESS, "50, 4, 0")), "four fragments cost")]
    for timing in ("50, 4, 5", "50, 4, 25", "50, 1, 50"):
        pair = (one_fragment, (FIXED, PROGRESS, timing))
        claims.append(fewer(rows, pair, f"a delay costs, {timing}"))
        pair = ((FIXED, PROGRESS, timing), (FIXED, HALF, timing))
        claims.append(fewer(rows, pair, f"progress is better than 0.5, {timing}"))
    pair = ((FIXED, HALF, "50, 4, 5"), (FIXED, LOCAL, "50, 4, 5"))
    claims.append(fewer(rows, pair, "0.5 is better than 1.0, 50, 4, 5"))
    for name in (FIXED, FROM_N, LESS, MEAN):
        for size in ("50", "10"):
            pair = ((name, PROGRESS, f"{size}, 1, 0"), (name, PROGRESS, f"{size}, 1, {size}"))
            claims.append(fewer(rows, pair, f"{name}: a block of delay costs, blocks of {size}"))
    return claims


def of_updates(rows: Rows) -> list[Claim]:
    """Evaluate claims about quantised and sparse updates."""
    exact = (FIXED, "10", WHOLE)
    claims = [
        fewer(rows, (exact, (FIXED, "10", name)), f"{name} costs") for name, *_ in UPDATES[1:]
    ]
    for density in (0.1, 0.02):
        pair = ((MEAN, "10", sparse(density)), (FIXED, "10", sparse(density)))
        claims.append(fewer(rows, pair, f"{sparse(density)} is better without momentum"))
    pair = ((FIXED, "50", WHOLE), (FIXED, "50", INT4))
    claims.append(fewer(rows, pair, "int4 costs, blocks of 50"))
    pair = ((FIXED, "50", INT4), (MEAN, "10", sparse(0.02)))
    return [*claims, fewer(rows, pair, "int4, blocks of 50, is better than 2%, blocks of 10")]


def of_moments(rows: Rows) -> list[Claim]:
    """Evaluate claims about rare exchanges of moments."""
    every = {number: (ADAM, "10", number) for number in ("1", "3", "6")}
    return [
        fewer(rows, (every["1"], every["3"]), "moments every 3 blocks cost"),
        fewer(rows, (every["1"], every["6"]), "moments every 6 blocks cost"),
        fewer(rows, (every["6"], (f"{ADAM}, int4", "10", "6")), "int4 costs"),
        fewer(rows, (every["1"], (ADAM, "50", "1")), "blocks of 50 cost over 10"),
    ]


def of_rule(rows: Rows) -> list[Claim]:
    """Evaluate claims about QSR and constant block sizes."""
    rule = ("DiLoCo", RULE)
    return [
        fewer(rows, (("DiLoCo", "10"), rule), "QSR costs over blocks of 10"),
        fewer(rows, (rule, ("DiLoCo", "20")), "QSR is better than blocks of 20"),
    ]


def of_warmup(rows: Rows) -> list[Claim]:
    """Evaluate claims about the warm-up."""
    names = list(dict.fromkeys(name for name, _ in rows))
    claims = [
        fewer(rows, ((name, "2%"), (name, "0%")), f"{name}: a warm-up of 2% is better than none")
        for name in names
        if (name, "0%") in rows
    ]
    no_delay = (blocks(FIXED, 50), "2%")
    claims += [
        fewer(
            rows,
            (no_delay, (blocks(f"{FIXED}, {late}", 50), "2%")),
            f"{late} costs, warm-up of 2%",
        )
        for late in (LATE, STREAMED)
    ]
    pairs = (
        (blocks(ADAM, 10), blocks(FIXED, 10)),
        (blocks(SHORT, 10), blocks(FIXED, 10)),
        (blocks(ADAM, 10), blocks(SHORT, 10)),
        (blocks(ADAM, 50), blocks(FIXED, 50)),
        (blocks(ADAM, 10), blocks(RARELY, 10)),
        (blocks(SHORT, 10), blocks(f"{SHORT}, {INT4}", 10)),
        (blocks(RARELY, 10), blocks(f"{SHORT}, {INT4}", 10)),
    )
    return claims + [
        fewer(rows, ((one, "2%"), (other, "2%")), f"{one} is better than {other}, warm-up of 2%")
        for one, other in pairs
    ]


def of_few(rows: Rows) -> list[Claim]:
    """Evaluate claims about four workers."""
    diloco = (FIXED, "100")
    return [
        fewer(rows, ((SYNC, "-"), diloco), "DiLoCo costs over synchronous AdamW"),
        fewer(rows, ((FROM_N, "100"), diloco), "momentum from N is better"),
        fewer(rows, (diloco, (f"{FIXED}, {LATE}", "100")), "a block of delay costs"),
        fewer(rows, (diloco, (f"{FIXED}, {INT4}", "100")), "int4 costs"),
        fewer(rows, ((ADAM, "10"), diloco), "BMUF-Adam, blocks of 10, is better"),
    ]


def of_many(rows: Rows) -> list[Claim]:
    """Evaluate claims about 64 workers."""
    diloco = (FIXED, "10")
    return [
        fewer(rows, ((SYNC, "-"), diloco), "DiLoCo costs over synchronous AdamW"),
        fewer(rows, ((FROM_N, "10"), diloco), "momentum from N is better"),
        fewer(rows, (diloco, (MEAN, "10")), "DiLoCo is better than the mean"),
        fewer(rows, (diloco, (f"{FIXED}, {LATE}", "10")), "a block of delay costs"),
        fewer(rows, (diloco, (f"{FIXED}, {INT4}", "10")), "int4 costs"),
        fewer(rows, ((ADAM, "10"), diloco), "BMUF-Adam is better than DiLoCo"),
        fewer(rows, ((SHORT, "10"), diloco), "beta1 0.5 is better"),
        *(
            fewer(
                rows,
                ((f"{name}, {WARM}", "10"), (name, "10")),
                f"{name}: warm-up of 10% is better",
            )
            for name in (SHORT, ADAM)
        ),
        fewer(
            rows,
            ((f"{ADAM}, {WARM}", "10"), (f"{SHORT}, {WARM}", "10")),
            "BMUF-Adam is better than DiLoCo with beta1 0.5, warm-up of 10%",
        ),
        fewer(
            rows,
            ((f"{ADAM}, {WARM}", "10"), (f"{RARELY}, {WARM}", "10")),
            "int4 and moments every 6 blocks cost, warm-up of 10%",
        ),
    ]
