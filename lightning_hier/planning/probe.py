"""Measures links within and between hosts, by the times of messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.planning.network import Link

Where = Literal["within", "between"]
Pair = tuple[int, int]

SIZES: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of the messages."""

_KIND = "probe"
# Repetitions of each size, if they take so many seconds at most. A slow link gets fewer.
_REPEATS, _LIMIT_S = 20, 2.0
_COPIED_BYTES, _COPIES = 1 << 26, 7


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """A link, measured by some ranks.

    Attributes:
        where: within a host or between hosts.
        ranks: ranks of a ring that all send at the same time, as in training, or a pair of ranks.
        is_pair: whether one rank of a pair sends at a time.
        link: the link.
        processor_s: processor time of a message of the largest size, on the first rank.

    """

    where: Where
    ranks: tuple[int, ...]
    is_pair: bool
    link: Link
    processor_s: float


def measure_links(communicators: Communicators) -> list[LinkReading]:
    """Measure links within every host and between hosts, while they are otherwise idle.

    All hosts are measured internally at the same time. Between hosts, pairs of neighbouring hosts
    are measured one after the other, after all first ranks together. Every rank must call this
    function, and it returns all readings on every rank.

    Args:
        communicators: communicators with one group for each host.

    Raises:
        PeerError: a rank did not take part within the time limit. The error names it.

    """
    readings: list[LinkReading] = []
    everyone = torch.zeros(1, device=communicators.device)
    for number, (where, channel, pair) in enumerate(_turns(communicators), start=1):
        with communicators.progress.at(f"turn {number} of measuring the links"):
            if channel is not None and (pair is None or channel.position in pair):
                reading = _read(where, channel, pair, communicators.device)
                # Once for each pair or ring, because all of its ranks have a reading.
                readings += [reading] if channel.position == (pair or (0,))[0] else []
            # Simultaneous turns would share links, so all ranks wait for the end of each turn.
            communicators.world.all_reduce_(everyone, _KIND).wait()
    with communicators.progress.at("the exchange of the measurements"):
        rows = gather_json([asdict(reading) for reading in readings], communicators.device)
    return [
        LinkReading(**values | {"ranks": tuple(values["ranks"]), "link": Link(**values["link"])})
        for row in rows
        for values in row
    ]


def _turns(communicators: Communicators) -> Iterator[tuple[Where, Channel | None, Pair | None]]:
    """Channel and pair of each turn. Pair None: all-reduce. Channel None: this rank waits."""
    group, across = communicators.group, communicators.across
    if group.size > 1:
        yield "within", group, None
        yield "within", group, (0, 1)
    if across.size > 1:
        first = across if group.position == 0 else None
        yield "between", first, None
        # Two hosts have a single link, which both ends would measure.
        for host in range(across.size if across.size > 2 else 1):
            yield "between", first, (host, (host + 1) % across.size)


def _read(where: Where, channel: Channel, pair: Pair | None, device: torch.device) -> LinkReading:
    """Time messages of all sizes. The reading is that of the first rank of the pair or ring."""
    times = {}
    # In increasing order: the processor time that is kept is that of the largest size.
    for size in SIZES:
        times[size], processor_s = _time(channel, pair, torch.zeros(size // 4, device=device))
    return LinkReading(
        where=where,
        ranks=tuple(channel.ranks[position] for position in pair or range(channel.size)),
        is_pair=pair is not None,
        link=fit_link(times) if pair else fit_ring(channel.size, times),
        processor_s=processor_s,
    )


def _time(channel: Channel, pair: Pair | None, tensor: Tensor) -> tuple[float, float]:
    """Median time of a message or all-reduce, and mean processor time of this rank."""
    first, second = pair or (0, 0)

    def operate() -> None:
        if pair is None:
            channel.all_reduce_(tensor, _KIND).wait()
        else:
            _send(channel, tensor, first, second)
            _send(channel, tensor, second, first)

    operate()  # The first message opens the connection.
    fitting = int(_LIMIT_S / _seconds(operate, tensor.device))
    repeats = torch.tensor([max(1, min(_REPEATS, fitting))], device=tensor.device)
    # The first rank decides, because all ranks must make the same number of repetitions.
    if pair is None:
        channel.broadcast_(repeats, _KIND).wait()
    else:
        _send(channel, repeats, first, second)
    busy_s = time.process_time()
    times = [_seconds(operate, tensor.device) for _ in range(int(repeats))]
    busy_s = time.process_time() - busy_s
    messages = 1 if pair is None else 2  # a pair sends the message back
    return median(times) / messages, busy_s / len(times) / messages


def _send(channel: Channel, tensor: Tensor, source: int, target: int) -> None:
    for pending in channel.pass_(tensor, source, target, _KIND):
        pending.wait()


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


def copy_speed(device: torch.device) -> float:
    """Bytes per second of a copy by this rank. All ranks call it, so that they share the memory."""
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.zeros_like(source)
    times = [_seconds(lambda: target.copy_(source), device) for _ in range(_COPIES)]
    return _COPIED_BYTES / median(times)


def now(device: torch.device) -> float:
    """Current time, after all work that is queued on a GPU has completed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(operate: Callable[[], object], device: torch.device) -> float:
    begun = now(device)
    operate()
    return now(device) - begun
