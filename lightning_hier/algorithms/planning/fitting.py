"""A link's latency and bandwidth from how long messages of several sizes took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_hier.algorithms.planning.checks import check_positive
from lightning_hier.algorithms.planning.network import Link


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a link was in use.

    Attributes:
        nbytes: that went over it in one direction.
        seconds: until all were there.
        messages: of which each waited for the one before it.

    Raises:
        ValueError: a value is not above 0.

    """

    nbytes: float
    seconds: float
    messages: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("nbytes", "seconds", "messages"):
            check_positive(name, getattr(self, name))


def ring_timing(ranks: int, payload_bytes: float, seconds: float) -> Timing:
    """What an all-reduce of so many ranks in a ring was for each of its links.

    Every rank passes on ``2 (n - 1) / n`` of the tensor, in ``2 (n - 1)`` messages.
    """
    passed = 2 * (ranks - 1)
    return Timing(nbytes=passed / ranks * payload_bytes, seconds=seconds, messages=passed)


def fit_link(timings: Sequence[Timing]) -> Link:
    """The link whose ``messages * latency_s + nbytes / bytes_per_second`` comes nearest.

    The sum of the squares of the relative deviations is smallest, so that small messages, which
    tell the latency, count as much as large ones, which tell the bandwidth. A latency below zero
    becomes zero. Where large messages took no longer than small ones, the bandwidth is the largest
    that any of them had: the link carries at least that.

    Raises:
        ValueError: there are not two sizes.

    """
    sizes = {timing.nbytes for timing in timings}
    if len(sizes) < 2:
        raise ValueError(
            "latency and bandwidth need messages of two sizes, got "
            f"{sorted(sizes) or 'no message at all'}"
        )
    # Relative deviations: each equation is divided by its seconds.
    rows = [(each.messages / each.seconds, each.nbytes / each.seconds) for each in timings]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    latency_s = (a * bb - b * ab) / determinant if determinant > 0 else 0.0
    per_byte = (b * aa - a * ab) / determinant if determinant > 0 else 0.0
    if latency_s < 0:
        latency_s, per_byte = 0.0, b / bb
    if per_byte <= 0:
        latency_s = min(each.seconds / each.messages for each in timings)
        per_byte = min(each.seconds / each.nbytes for each in timings)
    return Link(latency_s=latency_s, bytes_per_second=1 / per_byte)
