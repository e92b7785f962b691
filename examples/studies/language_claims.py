"""Claims of bmuf_adam, bmuf and two_tiered_bmuf_gtc about many workers, for ``language``."""

from __future__ import annotations

from examples.studies.comparison import Claim, difference
from examples.studies.study import Rows, fewer

LOSS = "loss"
ALONE, SYNC, MA, CBM, NBM = "one worker", "synchronous", "MA", "BMUF-CBM", "BMUF-NBM"
UNCHANGED, SHORT, SLOW, COLD = "-", "beta2 0.99", "eta 0.9", "no warm-up"
FROM_N, FIXED = "eta from N", "eta 0.9"

MARGIN = 0.01
"""Relative increase of the loss that counts as no degradation."""


def averaged(beta1: float) -> str:
    """Return the label of BMUF-Adam with averaged moments."""
    return f"BMUF-Adam averaged, {beta1:g}"


def corrected(beta1: float) -> str:
    """Return the label of BMUF-Adam with corrected moments."""
    return f"BMUF-Adam corrected, {beta1:g}"


FAST = f"{corrected(0.5)}, eta 0.9"
"""Block momentum with a time constant of 10 blocks, for any number of workers."""


def of_tokens(rows: Rows) -> list[Claim]:
    """Evaluate claims about more workers, each with less data."""
    bmuf_adam = corrected(0.5)
    claims = [
        fewer(rows, ((MA, "16"), (MA, "64")), "bmuf: MA degrades from 16 to 64 workers"),
        fewer(rows, ((CBM, "64"), (MA, "64")), "bmuf: CBM is better than MA, 64 workers"),
        fewer(rows, ((NBM, "64"), (MA, "64")), "bmuf: NBM is better than MA, 64 workers"),
        fewer(rows, ((NBM, "64"), (CBM, "64")), "bmuf: NBM is better than CBM, 64 workers"),
        fewer(rows, ((NBM, "16"), (CBM, "16")), "bmuf: NBM is better than CBM, 16 workers"),
        fewer(rows, ((NBM, "16"), (NBM, "64")), "two tiers: BMUF degrades from 16 to 64 workers"),
        fewer(
            rows,
            ((averaged(0.9), "16"), (averaged(0.9), "64")),
            "bmuf_adam: averaged moments degrade from 16 to 64 workers, beta1 0.9",
        ),
    ]
    for beta1 in (0.9, 0.5):
        for workers in ("16", "64"):
            pair = ((corrected(beta1), workers), (averaged(beta1), workers))
            text = f"corrected moments are better than averaged ones, beta1 {beta1:g}"
            claims.append(fewer(rows, pair, f"bmuf_adam: {text}, {workers} workers"))
    for workers in ("16", "64"):
        pair = ((bmuf_adam, workers), (corrected(0.9), workers))
        text = "beta1 0.5 is better than 0.9, corrected moments"
        claims.append(fewer(rows, pair, f"bmuf_adam: {text}, {workers} workers"))
    for workers in ("16", "64"):
        pair = ((bmuf_adam, workers), (SYNC, workers))
        text = f"bmuf_adam: BMUF-Adam is better than synchronous Adam, {workers} workers"
        claims.append(fewer(rows, pair, text))
    return [
        *claims,
        fewer(
            rows,
            ((SYNC, "16"), (SYNC, "64")),
            "bmuf_adam: synchronous Adam degrades from 16 to 64 workers",
        ),
        fewer(rows, ((bmuf_adam, "64"), (NBM, "64")), "BMUF-Adam is better than BMUF, 64 workers"),
        fewer(rows, ((bmuf_adam, "64"), (MA, "64")), "BMUF-Adam is better than MA, 64 workers"),
    ]


def of_best(rows: Rows) -> list[Claim]:
    """Evaluate claims about the systems at their best learning rates."""
    labels = {name: (name, rate) for name, rate in rows}
    pairs = (
        (corrected(0.5), averaged(0.5)),
        (corrected(0.5), MA),
        (corrected(0.5), SYNC),
        (FAST, corrected(0.5)),
        (FAST, MA),
        (FAST, SYNC),
    )
    return [
        fewer(rows, (labels[one], labels[other]), f"{one} is better than {other}")
        for one, other in pairs
    ]


def of_few(rows: Rows) -> list[Claim]:
    """Evaluate claims about 4 workers."""
    bmuf_adam = corrected(0.5)
    return [
        fewer(rows, ((MA, "4"), (MA, "64")), "bmuf: MA degrades from 4 to 64 workers"),
        fewer(rows, ((NBM, "4"), (NBM, "64")), "two tiers: BMUF degrades from 4 to 64 workers"),
        fewer(
            rows,
            ((SYNC, "4"), (SYNC, "64")),
            "bmuf_adam: synchronous Adam degrades from 4 to 64 workers",
        ),
        *(
            _as_good_as_one(rows, (name, workers), f"{paper}: {name} is as good as one worker")
            for paper, name in (("bmuf", NBM), ("bmuf_adam", bmuf_adam))
            for workers in ("4", "16", "64")
        ),
        fewer(rows, ((NBM, "4"), (MA, "4")), "bmuf: NBM is better than MA, 4 workers"),
        fewer(rows, ((bmuf_adam, "4"), (SYNC, "4")), "BMUF-Adam is better than synchronous Adam"),
        fewer(
            rows,
            ((bmuf_adam, "4"), (averaged(0.5), "4")),
            "corrected are better than averaged, 0.5",
        ),
        fewer(
            rows,
            ((corrected(0.9), "4"), (averaged(0.9), "4")),
            "corrected are better than averaged, 0.9",
        ),
    ]


def of_blocks(rows: Rows) -> list[Claim]:
    """Evaluate claims of bmuf_adam and two_tiered_bmuf_gtc about longer blocks."""
    bmuf_adam = corrected(0.5)
    longer = [
        fewer(rows, ((name, one), (name, other)), f"{name}: blocks of {other} cost over {one}")
        for name in (MA, bmuf_adam)
        for one, other in (("10", "30"), ("30", "100"), ("100", "300"))
    ]
    return [
        *longer,
        *(
            fewer(
                rows,
                ((bmuf_adam, size), (MA, size)),
                f"BMUF-Adam is better than MA, blocks of {size}",
            )
            for size in ("10", "30", "100", "300")
        ),
    ]


def of_steps(rows: Rows) -> list[Claim]:
    """Evaluate claims about more workers with equally many steps each."""
    names = (SYNC, MA, NBM, averaged(0.5), corrected(0.5))
    more = [
        fewer(rows, ((name, "64"), (name, "4")), f"{name}: 64 workers learn more than 4")
        for name in names
    ]
    return [
        *more,
        *(
            fewer(
                rows,
                ((corrected(0.5), workers), (SYNC, workers)),
                f"BMUF-Adam is better than synchronous Adam, {workers} workers",
            )
            for workers in ("4", "16", "64")
        ),
    ]


def of_sgd(rows: Rows) -> list[Claim]:
    """Evaluate the claims of bmuf, with SGD as in the paper."""
    claims = []
    for workers in ("16", "64"):
        with_workers = f"{workers} workers"
        claims += [
            fewer(rows, ((CBM, workers), (MA, workers)), f"CBM is better than MA, {with_workers}"),
            fewer(rows, ((NBM, workers), (MA, workers)), f"NBM is better than MA, {with_workers}"),
            fewer(
                rows, ((NBM, workers), (CBM, workers)), f"NBM is better than CBM, {with_workers}"
            ),
            fewer(
                rows,
                ((NBM, workers), (SYNC, workers)),
                f"NBM is better than synchronous SGD, {with_workers}",
            ),
        ]
    return claims


def of_moments(rows: Rows) -> list[Claim]:
    """Evaluate claims about the causes of the difference between kinds of moments."""
    return [
        *(
            fewer(
                rows,
                (("averaged", changed), ("corrected", changed)),
                f"averaged moments are better than corrected ones, {changed}",
            )
            for changed in (UNCHANGED, SHORT, SLOW, COLD)
        ),
        *(
            fewer(
                rows,
                ((kind, SHORT), (kind, UNCHANGED)),
                f"beta2 of 0.99 is better than 0.999, {kind} moments",
            )
            for kind in ("averaged", "corrected")
        ),
    ]


def of_eta(rows: Rows) -> list[Claim]:
    """Evaluate claims of bmuf about the block momentum."""
    return [
        fewer(
            rows,
            ((f"{name}, {FROM_N}", workers), (f"{name}, {FIXED}", workers)),
            f"{name}: eta from N is better than 0.9, {workers} workers",
        )
        for name in (NBM, corrected(0.5))
        for workers in ("16", "64")
    ]


def of_groups(rows: Rows) -> list[Claim]:
    """Evaluate claims of two_tiered_bmuf_gtc about fewer and larger groups."""
    return [
        fewer(
            rows,
            ((name, larger), (name, smaller)),
            f"two tiers: {name}: groups of {larger} are better than of {smaller}",
        )
        for name in (NBM, corrected(0.5))
        for smaller, larger in (("1", "4"), ("4", "16"))
    ]


def _as_good_as_one(rows: Rows, labels: tuple[str, ...], text: str) -> Claim:
    """Compare a row with one worker on equally many tokens, with a margin."""
    row, one_worker = rows[labels], rows[(ALONE, "1")].values[LOSS]
    margin = MARGIN * sum(one_worker) / len(one_worker)
    text = f"{text}, {labels[-1]} workers"
    digits = row.digits.get(LOSS, 1)
    return difference(text, row.values[LOSS], one_worker, LOSS, digits, margin=margin)
