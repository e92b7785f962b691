"""Measures the time of messages within and between hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators

Where = Literal["within", "between"]
Operation = Literal["all_reduce", "send"]
Pair = tuple[int, int]

SIZES: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of the messages."""

_KIND = "probe"
# Repetitions of each size, if they take so many seconds at most. A slow link gets fewer.
_REPEATS, _LIMIT_S = 20, 2.0
_COPIED_BYTES, _COPIES = 1 << 26, 7


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """Time of one operation with messages of one size.

    Attributes:
        where: within a host or between hosts.
        operation: an all-reduce, or a message from the first rank to the second.
        ranks: participating ranks.
        payload_bytes: bytes of the tensor.
        seconds: median time.
        processor_s: mean processor time of the first rank.

    """

    where: Where
    operation: Operation
    ranks: tuple[int, ...]
    payload_bytes: int
    seconds: float
    processor_s: float


def measure_links(communicators: Communicators) -> list[LinkReading]:
    """Measure messages within every host and between hosts, while the links are otherwise idle.

    All hosts are measured internally at the same time. Between hosts, pairs of neighbouring hosts
    are measured one after the other, then all first ranks together. Every rank must call this
    function, and it returns all readings on every rank.

    Args:
        communicators: communicators with one group for each host.

    Raises:
        PeerError: a rank did not take part within the time limit. The error names it.

    """
    found: list[LinkReading] = []
    everyone = torch.zeros(1, device=communicators.device)
    for number, (where, channel, pair) in enumerate(_turns(communicators), start=1):
        with communicators.progress.at(f"turn {number} of measuring the links"):
            if channel is not None and (pair is None or channel.position in pair):
                for size in SIZES:
                    tensor = torch.zeros(size // 4, device=communicators.device)
                    found += _time(where, channel, pair, tensor)
            # Simultaneous turns would share links, so all ranks wait for the end of each turn.
            communicators.world.all_reduce_(everyone, _KIND).wait()
    with communicators.progress.at("the exchange of the measurements"):
        rows = gather_json([asdict(reading) for reading in found], communicators.device)
    return [
        LinkReading(**{**reading, "ranks": tuple(reading["ranks"])})
        for row in rows
        for reading in row
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
        for host in range(across.size if across.size > 2 else 1):
            yield "between", first, (host, (host + 1) % across.size)


def _time(where: Where, channel: Channel, pair: Pair | None, tensor: Tensor) -> list[LinkReading]:
    """The readings of the first rank; an empty list on the others."""
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
    if channel.position != first:
        return []
    messages = 1 if pair is None else 2  # a pair sends the message back
    return [
        LinkReading(
            where=where,
            operation="all_reduce" if pair is None else "send",
            ranks=tuple(channel.ranks[position] for position in pair or range(channel.size)),
            payload_bytes=tensor.nbytes,
            seconds=median(times) / messages,
            processor_s=busy_s / len(times) / messages,
        )
    ]


def _send(channel: Channel, tensor: Tensor, source: int, target: int) -> None:
    for pending in channel.pass_(tensor, source, target, _KIND):
        pending.wait()


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
