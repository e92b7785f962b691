"""Links and processors from the times of messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lightning_hier.planning.network import Link, Processor
from lightning_hier.planning.probe import LinkReading, Operation, Where


def fit_link(seconds: Mapping[int, float], *, messages: int = 1, sent_share: float = 1.0) -> Link:
    """Link on which operations of two sizes or more took so long.

    The bandwidth comes from the two largest sizes: the token buckets of many clouds let a first
    part of a message pass at once. The latency is the rest of the smallest size. Where the largest
    size took no longer than the second, the bandwidth is a lower bound.

    Args:
        seconds: time by payload bytes.
        messages: of one operation, each of which waits for the one before it.
        sent_share: share of the payload that the link carries in one direction.

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
    """The slowest ring in which all ranks send at the same time, as in training."""
    found = _seconds(readings, where, "all_reduce")
    links = [fit_ring(len(ranks), seconds) for ranks, seconds in found.items()]
    return min(links, key=lambda link: link.bytes_per_second, default=None)


def pairs_of(readings: Sequence[LinkReading], where: Where) -> dict[tuple[int, ...], Link]:
    """The link of each pair of ranks that have sent each other messages."""
    found = _seconds(readings, where, "send")
    return {ranks: fit_link(seconds) for ranks, seconds in found.items()}


def processor_of(
    readings: Sequence[LinkReading], copy_speed: float, devices: int, cores: int | None
) -> Processor:
    """The processor of a host; ``cores`` None: its ranks copy on GPUs and use no sockets."""
    if cores is None:
        return Processor(copy_bytes_per_second=copy_speed)
    sends = [reading for reading in readings if reading.operation == "send"]
    largest = max((reading.payload_bytes for reading in sends), default=0)
    # A message and its answer: as many bytes sent as received, half of both in the time of one way.
    speeds = [
        largest / reading.processor_s
        for reading in sends
        if reading.payload_bytes == largest and reading.processor_s > 0
    ]
    return Processor(
        cores=cores,
        # Ranks that share a core get a part of its time each.
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
