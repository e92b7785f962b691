"""Evaluation of claims from the differences between runs with the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student_t

from examples.tables import mean_and_deviation

Verdict = Literal["holds", "does not hold", "cannot be seen at this size", "one seed is not enough"]


@dataclass(frozen=True)
class Claim:
    """A claim about a table, with its verdict.

    Attributes:
        text: text of the claim.
        verdict: whether the claim holds in the study.
        because: the values from which the verdict follows.

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
    """Evaluate the claim that values are smaller than others with the same seeds.

    Args:
        text: text of the claim.
        first: the smaller values according to the claim, one for each seed.
        second: the larger values, one for each seed.
        title: title of the measure.
        digits: number of decimals of the measure.
        margin: amount by which the first values may be larger. If it is not 0, the claim is that
            they are not worse.

    """
    differences = [larger - smaller for smaller, larger in zip(first, second, strict=True)]
    mean = statistics.mean(differences)
    because = (
        f"{title}: {mean_and_deviation(first, digits)} against {mean_and_deviation(second, digits)}"
    )
    if len(first) < 2:
        return Claim(text, "one seed is not enough", because)
    half_width = _half_width(differences)
    verdict: Verdict = "holds" if mean > -margin else "does not hold"
    if abs(mean + margin) <= half_width:
        verdict = "cannot be seen at this size"
    interval = f"{mean - half_width:+.{digits}f} to {mean + half_width:+.{digits}f}"
    allowed = f", {-margin:+.{digits}f} allowed" if margin else ""
    return Claim(text, verdict, f"{because}; less by {mean:+.{digits}f} ({interval}{allowed})")


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, 0 for a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95% confidence interval of the mean."""
    return float(student_t.ppf(0.975, len(values) - 1)) * standard_error(values)
