"""Links and processors, computed from the times of messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lightning_hier.planning.network import Link, Processor
from lightning_hier.planning.probe import LinkReading, Operation, Where


def fit_link(seconds: Mapping[int, float], *, messages: int = 1, sent_share: float = 1.0) -> Link:
    """Fit a link to the times of operations of at least two sizes.

    The bandwidth follows from the difference of the two largest sizes, because the token buckets of
    many clouds pass the first part of a message without delay. The latency is the remaining time of
    the smallest size. If the largest size took no longer than the second, the bandwidth is a lower
    bound.

    Args:
        seconds: time by payload bytes.
        messages: number of consecutive messages in one operation.
        sent_share: fraction of the payload that the link carries in one direction.

    """
    sizes = sorted(seconds)
    smallest, second, largest = sizes[0], sizes[-2], sizes[-1]
    longer = seconds[largest] - seconds[second]
    rate = (largest - second) / longer if longer > 0 else largest / seconds[largest]
    rest = seconds[smallest] - smallest / rate
    return Link(latency_s=max(rest / messages, 0.0), bytes_per_second=sent_share * rate)


def fit_ring(ranks: int, seconds: Mapping[int, float]) -> Link:
    """Link of a ring all-reduce: 2 (n - 1) / n of the tensor in 2 (n - 1) messages."""
    rounds = 2 * (ranks - 1)
    return fit_link(seconds, messages=rounds, sent_share=rounds / ranks)


def link_of(readings: Sequence[LinkReading], where: Where) -> Link | None:
    """The slowest ring. In a ring, all ranks send at the same time, as in training."""
    found = _seconds(readings, where, "all_reduce")
    links = [fit_ring(len(ranks), seconds) for ranks, seconds in found.items()]
    return min(links, key=lambda link: link.bytes_per_second, default=None)


def pairs_of(readings: Sequence[LinkReading], where: Where) -> dict[tuple[int, ...], Link]:
    """The link of each measured pair of ranks."""
    found = _seconds(readings, where, "send")
    return {ranks: fit_link(seconds) for ranks, seconds in found.items()}


def processor_of(
    readings: Sequence[LinkReading], copy_speed: float, devices: int, cores: int | None
) -> Processor:
    """The processor of a host. ``cores`` None: ranks copy on GPUs and do not use sockets."""
    if cores is None:
        return Processor(copy_bytes_per_second=copy_speed)
    sends = [reading for reading in readings if reading.operation == "send"]
    largest = max((reading.payload_bytes for reading in sends), default=0)
    # A message and its reply: the same number of bytes is sent and received.
    speeds = [
        largest / reading.processor_s
        for reading in sends
        if reading.payload_bytes == largest and reading.processor_s > 0
    ]
    return Processor(
        cores=cores,
        # Ranks that share a core each get a part of its time.
        copy_bytes_per_second=copy_speed * max(devices / cores, 1.0),
        socket_bytes_per_second=min(speeds, default=None),
    )


def _seconds(
    readings: Sequence[LinkReading], where: Where, operation: Operation
) -> dict[tuple[int, ...], dict[int, float]]:
    """Time by size, for each group of ranks."""
    found: defaultdict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for reading in readings:
        if (reading.where, reading.operation) == (where, operation):
            found[reading.ranks][reading.payload_bytes] = reading.seconds
    return found
