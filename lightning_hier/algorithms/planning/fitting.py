"""A link's latency and bandwidth from how long messages of several sizes took."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_hier.algorithms.arguments import check_positive, check_whole
from lightning_hier.algorithms.planning.network import Link


def fit_link(seconds: Mapping[int, float], *, messages: int = 1, passed_share: float = 1.0) -> Link:
    """The link over which operations took so long.

    Bandwidth is what the largest size took more than the second largest: many links let a first
    part of a message through at once and are slower from then on (token buckets). Latency is what
    the smallest size took beyond its bytes. Where larger messages took no longer, the bandwidth is
    that of the largest size as a whole: the link carries at least that.

    Args:
        seconds: by payload bytes of the operation; two sizes or more.
        messages: of the operation, each of which waits for the one before it.
        passed_share: of the payload that the link carries in one direction.

    Raises:
        ValueError: fewer than two sizes, or a value that is not above 0.

    """
    check_whole("messages", messages)
    check_positive("passed_share", passed_share)
    for size, taken in seconds.items():
        check_positive("a size in bytes", size)
        check_positive(f"the time of {size} bytes", taken)
    if len(seconds) < 2:
        raise ValueError(f"a link's bandwidth needs messages of two sizes, got {list(seconds)}")
    *_, second, largest = sorted(seconds)
    longer = seconds[largest] - seconds[second]
    if longer > 0:
        rate = passed_share * (largest - second) / longer
    else:
        rate = passed_share * largest / seconds[largest]
    smallest = min(seconds)
    rest = seconds[smallest] - passed_share * smallest / rate
    return Link(latency_s=max(rest / messages, 0.0), bytes_per_second=rate)


def fit_ring(ranks: int, seconds: Mapping[int, float]) -> Link:
    """The links of a ring of ranks whose all-reduces took so long.

    Every rank passes on ``2 (n - 1) / n`` of the tensor, in ``2 (n - 1)`` messages.

    Args:
        ranks: n, at least 2.
        seconds: by bytes of the tensor.

    Raises:
        ValueError: as :func:`fit_link`.

    """
    check_whole("ranks", ranks, least=2)
    passed = 2 * (ranks - 1)
    return fit_link(seconds, messages=passed, passed_share=passed / ranks)
