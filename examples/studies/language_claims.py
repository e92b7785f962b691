"""What bmuf_adam, bmuf and two_tiered_bmuf_gtc say of many workers, answered by ``language``."""

from __future__ import annotations

from examples.studies.comparison import Claim, difference
from examples.studies.study import Rows, fewer

LOSS = "loss"
ALONE, SYNC, MA, CBM, NBM = "one worker", "synchronous", "MA", "BMUF-CBM", "BMUF-NBM"
UNCHANGED, SHORT, SLOW, COLD = "-", "beta2 0.99", "eta 0.9", "no warm-up"
FROM_N, FIXED = "eta from N", "eta 0.9"

MARGIN = 0.01
"""Share of the loss by which a system that is said not to degrade may be worse."""


def averaged(beta1: float) -> str:
    """Name of BMUF-Adam with averaged moments."""
    return f"BMUF-Adam averaged, {beta1:g}"


def corrected(beta1: float) -> str:
    """Name of BMUF-Adam with corrected moments."""
    return f"BMUF-Adam corrected, {beta1:g}"


FAST = f"{corrected(0.5)}, eta 0.9"
"""Block momentum that builds up in 10 blocks, however many workers."""


def of_tokens(found: Rows) -> list[Claim]:
    """What the papers say of more workers, each with less of the data."""
    own = corrected(0.5)
    claims = [
        fewer(found, ((MA, "16"), (MA, "64")), "bmuf: MA degrades from 16 to 64 workers"),
        fewer(found, ((CBM, "64"), (MA, "64")), "bmuf: CBM is better than MA, 64 workers"),
        fewer(found, ((NBM, "64"), (MA, "64")), "bmuf: NBM is better than MA, 64 workers"),
        fewer(found, ((NBM, "64"), (CBM, "64")), "bmuf: NBM is better than CBM, 64 workers"),
        fewer(found, ((NBM, "16"), (CBM, "16")), "bmuf: NBM is better than CBM, 16 workers"),
        fewer(found, ((NBM, "16"), (NBM, "64")), "two tiers: BMUF degrades from 16 to 64 workers"),
        fewer(
            found,
            ((averaged(0.9), "16"), (averaged(0.9), "64")),
            "bmuf_adam: averaged moments degrade from 16 to 64 workers, beta1 0.9",
        ),
    ]
    for beta1 in (0.9, 0.5):
        for workers in ("16", "64"):
            pair = ((corrected(beta1), workers), (averaged(beta1), workers))
            text = f"corrected moments are better than averaged ones, beta1 {beta1:g}"
            claims.append(fewer(found, pair, f"bmuf_adam: {text}, {workers} workers"))
    for workers in ("16", "64"):
        pair = ((own, workers), (corrected(0.9), workers))
        text = "beta1 0.5 is better than 0.9, corrected moments"
        claims.append(fewer(found, pair, f"bmuf_adam: {text}, {workers} workers"))
    for workers in ("16", "64"):
        pair = ((own, workers), (SYNC, workers))
        text = f"bmuf_adam: BMUF-Adam is better than synchronous Adam, {workers} workers"
        claims.append(fewer(found, pair, text))
    return [
        *claims,
        fewer(
            found,
            ((SYNC, "16"), (SYNC, "64")),
            "bmuf_adam: synchronous Adam degrades from 16 to 64 workers",
        ),
        fewer(found, ((own, "64"), (NBM, "64")), "BMUF-Adam is better than BMUF, 64 workers"),
        fewer(found, ((own, "64"), (MA, "64")), "BMUF-Adam is better than MA, 64 workers"),
    ]


def of_best(found: Rows) -> list[Claim]:
    """The systems at the best of the rates that were tried for each."""
    rows = {name: (name, own) for name, own in found}
    pairs = (
        (corrected(0.5), averaged(0.5)),
        (corrected(0.5), MA),
        (corrected(0.5), SYNC),
        (FAST, corrected(0.5)),
        (FAST, MA),
        (FAST, SYNC),
    )
    return [
        fewer(found, (rows[one], rows[other]), f"{one} is better than {other}")
        for one, other in pairs
    ]


def of_few(found: Rows) -> list[Claim]:
    """The same of 4 workers."""
    own = corrected(0.5)
    return [
        fewer(found, ((MA, "4"), (MA, "64")), "bmuf: MA degrades from 4 to 64 workers"),
        fewer(found, ((NBM, "4"), (NBM, "64")), "two tiers: BMUF degrades from 4 to 64 workers"),
        fewer(
            found,
            ((SYNC, "4"), (SYNC, "64")),
            "bmuf_adam: synchronous Adam degrades from 4 to 64 workers",
        ),
        *(
            _as_good_as_one(found, (name, workers), f"{paper}: {name} is as good as one worker")
            for paper, name in (("bmuf", NBM), ("bmuf_adam", own))
            for workers in ("4", "16", "64")
        ),
        fewer(found, ((NBM, "4"), (MA, "4")), "bmuf: NBM is better than MA, 4 workers"),
        fewer(found, ((own, "4"), (SYNC, "4")), "BMUF-Adam is better than synchronous Adam"),
        fewer(found, ((own, "4"), (averaged(0.5), "4")), "corrected are better than averaged, 0.5"),
        fewer(
            found,
            ((corrected(0.9), "4"), (averaged(0.9), "4")),
            "corrected are better than averaged, 0.9",
        ),
    ]


def of_blocks(found: Rows) -> list[Claim]:
    """What bmuf_adam and two_tiered_bmuf_gtc say of longer blocks."""
    own = corrected(0.5)
    longer = [
        fewer(found, ((name, one), (name, other)), f"{name}: blocks of {other} cost over {one}")
        for name in (MA, own)
        for one, other in (("10", "30"), ("30", "100"), ("100", "300"))
    ]
    return [
        *longer,
        *(
            fewer(
                found, ((own, size), (MA, size)), f"BMUF-Adam is better than MA, blocks of {size}"
            )
            for size in ("10", "30", "100", "300")
        ),
    ]


def of_steps(found: Rows) -> list[Claim]:
    """What more workers bring where each makes as many steps."""
    names = (SYNC, MA, NBM, averaged(0.5), corrected(0.5))
    more = [
        fewer(found, ((name, "64"), (name, "4")), f"{name}: 64 workers learn more than 4")
        for name in names
    ]
    return [
        *more,
        *(
            fewer(
                found,
                ((corrected(0.5), workers), (SYNC, workers)),
                f"BMUF-Adam is better than synchronous Adam, {workers} workers",
            )
            for workers in ("4", "16", "64")
        ),
    ]


def of_sgd(found: Rows) -> list[Claim]:
    """What bmuf says, with the optimizer that it has."""
    claims = []
    for workers in ("16", "64"):
        with_workers = f"{workers} workers"
        claims += [
            fewer(found, ((CBM, workers), (MA, workers)), f"CBM is better than MA, {with_workers}"),
            fewer(found, ((NBM, workers), (MA, workers)), f"NBM is better than MA, {with_workers}"),
            fewer(
                found, ((NBM, workers), (CBM, workers)), f"NBM is better than CBM, {with_workers}"
            ),
            fewer(
                found,
                ((NBM, workers), (SYNC, workers)),
                f"NBM is better than synchronous SGD, {with_workers}",
            ),
        ]
    return claims


def of_moments(found: Rows) -> list[Claim]:
    """Where the difference between averaged and corrected moments comes from."""
    first, second = "first ones corrected", "second ones corrected"
    return [
        *(
            fewer(
                found,
                (("averaged", changed), ("corrected", changed)),
                f"averaged moments are better than corrected ones, {changed}",
            )
            for changed in (UNCHANGED, SHORT, SLOW, COLD)
        ),
        *(
            fewer(
                found,
                (("averaged", UNCHANGED), (name, UNCHANGED)),
                f"averaged moments are better than {name}",
            )
            for name in (first, second)
        ),
        *(
            fewer(
                found,
                ((kind, SHORT), (kind, UNCHANGED)),
                f"beta2 of 0.99 is better than 0.999, {kind} moments",
            )
            for kind in ("averaged", "corrected")
        ),
    ]


def of_eta(found: Rows) -> list[Claim]:
    """What bmuf says of the block momentum."""
    return [
        fewer(
            found,
            ((f"{name}, {FROM_N}", workers), (f"{name}, {FIXED}", workers)),
            f"{name}: eta from N is better than 0.9, {workers} workers",
        )
        for name in (NBM, corrected(0.5))
        for workers in ("16", "64")
    ]


def of_groups(found: Rows) -> list[Claim]:
    """What two_tiered_bmuf_gtc says of fewer models of larger groups."""
    return [
        fewer(
            found,
            ((name, larger), (name, smaller)),
            f"two tiers: {name}: groups of {larger} are better than of {smaller}",
        )
        for name in (NBM, corrected(0.5))
        for smaller, larger in (("1", "4"), ("4", "16"))
    ]


def _as_good_as_one(found: Rows, labels: tuple[str, ...], text: str) -> Claim:
    """Against one worker with as many tokens, with a margin."""
    row, alone = found[labels], found[(ALONE, "1")].values[LOSS]
    margin = MARGIN * sum(alone) / len(alone)
    text = f"{text}, {labels[-1]} workers"
    return difference(text, row.values[LOSS], alone, LOSS, row.digits.get(LOSS, 1), margin=margin)
