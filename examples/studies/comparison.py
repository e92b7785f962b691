"""Claims, answered by the differences between runs of the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student_t

from examples.tables import mean_and_deviation

Verdict = Literal["holds", "does not hold", "cannot be seen at this size", "one seed says nothing"]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of a table, answered.

    Attributes:
        text: what it says.
        verdict: whether it holds here.
        because: the figures.

    """

    text: str
    verdict: Verdict
    because: str


def difference(
    text: str,
    first: Sequence[float],
    second: Sequence[float],
    title: str,
    digits: int,
    *,
    margin: float = 0.0,
) -> Claim:
    """Answer a claim that values are less than others of the same seeds, up to a margin.

    Args:
        text: the claim.
        first: what is said to be less, one value for each seed.
        second: the others.
        title: of the measure.
        digits: of the measure, after the point.
        margin: by which the first may be larger; with one that is not 0 the claim is that they are
            not worse.

    """
    gaps = [there - here for here, there in zip(first, second, strict=True)]
    gap = statistics.mean(gaps)
    because = (
        f"{title}: {mean_and_deviation(first, digits)} against {mean_and_deviation(second, digits)}"
    )
    if len(first) < 2:
        return Claim(text, "one seed says nothing", because)
    doubt = _doubt(gaps)
    verdict: Verdict = "holds" if gap > -margin else "does not hold"
    if abs(gap + margin) <= doubt:
        verdict = "cannot be seen at this size"
    interval = f"{gap - doubt:+.{digits}f} to {gap + doubt:+.{digits}f}"
    allowed = f", {-margin:+.{digits}f} allowed" if margin else ""
    return Claim(text, verdict, f"{because}; less by {gap:+.{digits}f} ({interval}{allowed})")


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 for one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _doubt(values: Sequence[float]) -> float:
    return float(student_t.ppf(0.975, len(values) - 1)) * standard_error(values)
