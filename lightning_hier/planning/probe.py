"""Measures links within and between hosts, by the times of all-reduces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.planning.network import Link

Where = Literal["within", "between"]

SIZES: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of the tensors."""

_KIND = "probe"
# Repetitions of each size, if they take so many seconds at most. A slow link gets fewer.
_REPEATS, _LIMIT_S = 20, 2.0
_COPIED_BYTES, _COPIES = 1 << 26, 7


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """A link, measured by an all-reduce of some ranks, which all send at the same time.

    Attributes:
        where: within a host or between hosts.
        ranks: the ranks of the ring.
        link: the link.
        processor_s: processor time of an all-reduce of the largest size on the first rank.

    """

    where: Where
    ranks: tuple[int, ...]
    link: Link
    processor_s: float

    @property
    def socket_bytes(self) -> float:
        """Bytes that each rank sends and receives in an all-reduce of the largest size."""
        return 4 * (len(self.ranks) - 1) / len(self.ranks) * SIZES[-1]


def measure_links(communicators: Communicators, timeout: timedelta) -> list[LinkReading]:
    """Measure links within every host and between hosts, while they are otherwise idle.

    All hosts are measured internally at the same time. Between hosts, all first ranks are measured
    together, then pairs of neighbouring hosts one after the other. Every rank must call this
    function, and it returns all readings on every rank.

    Args:
        communicators: communicators with one group for each host.
        timeout: time limit of every wait for a rank.

    Raises:
        PeerError: a rank did not take part within the time limit. The error names it.

    """
    readings: list[LinkReading] = []
    everyone = torch.zeros(1, device=communicators.device)
    for number, (where, ring) in enumerate(_rings(communicators, timeout), start=1):
        with communicators.progress.at(f"turn {number} of measuring the links"):
            if ring is not None:
                reading = _read(where, ring, communicators.device)
                # Once for each ring, because all of its ranks have a reading.
                readings += [reading] if ring.position == 0 else []
            # Simultaneous turns would share links, so all ranks wait for the end of each turn.
            communicators.world.all_reduce_(everyone, _KIND).wait()
    with communicators.progress.at("the exchange of the measurements"):
        rows = gather_json([asdict(reading) for reading in readings], communicators.device)
    return [
        LinkReading(**values | {"ranks": tuple(values["ranks"]), "link": Link(**values["link"])})
        for row in rows
        for values in row
    ]


def _rings(
    communicators: Communicators, timeout: timedelta
) -> Iterator[tuple[Where, Channel | None]]:
    """Channel of each turn. None: this rank waits."""
    group, across = communicators.group, communicators.across
    if group.size > 1:
        yield "within", group
    if across.size > 1:
        yield "between", across if group.position == 0 else None
    # Two hosts have a single link, which is that of their ring.
    for host in range(across.size if across.size > 2 else 0):
        pair = [group.size * host, group.size * ((host + 1) % across.size)]
        # torch creates a process group on all ranks, also on those that are not members.
        process_group = dist.new_group(pair, timeout=timeout)
        is_member = dist.get_rank() in pair
        yield "between", communicators.in_group(process_group) if is_member else None


def _read(where: Where, ring: Channel, device: torch.device) -> LinkReading:
    """Time all-reduces of all sizes."""
    times, busy_s = {}, 0.0
    # In increasing order: the processor time that is kept is that of the largest size.
    for size in SIZES:
        times[size], busy_s = _time(ring, torch.zeros(size // 4, device=device))
    return LinkReading(
        where=where,
        ranks=tuple(ring.ranks),
        link=fit_ring(ring.size, times),
        processor_s=busy_s,
    )


def _time(ring: Channel, tensor: Tensor) -> tuple[float, float]:
    """Median time of an all-reduce, and mean processor time of this rank."""

    def operate() -> None:
        ring.all_reduce_(tensor, _KIND).wait()

    operate()  # The first one opens the connections.
    fitting = int(_LIMIT_S / _seconds(operate, tensor.device))
    repeats = torch.tensor([max(1, min(_REPEATS, fitting))], device=tensor.device)
    # The first rank decides, because all ranks must make the same number of repetitions.
    ring.broadcast_(repeats, _KIND).wait()
    busy_s = time.process_time()
    times = [_seconds(operate, tensor.device) for _ in range(int(repeats))]
    return median(times), (time.process_time() - busy_s) / len(times)


def fit_ring(ranks: int, seconds: Mapping[int, float]) -> Link:
    """Fit a link to the times of ring all-reduces: 2 (n - 1) / n of the tensor in 2 (n - 1) rounds.

    The bandwidth follows from the difference of the two largest sizes, because the token buckets of
    many clouds pass the first part of a message without delay. The latency is the remaining time of
    the smallest size. If the largest size took no longer than the second, the bandwidth is a lower
    bound.

    Args:
        ranks: number n of ranks.
        seconds: time by bytes of the tensor, of at least two sizes.

    """
    rounds = 2 * (ranks - 1)
    sizes = sorted(seconds)
    smallest, second, largest = sizes[0], sizes[-2], sizes[-1]
    longer = seconds[largest] - seconds[second]
    rate = (largest - second) / longer if longer > 0 else largest / seconds[largest]
    rest = seconds[smallest] - smallest / rate
    return Link(latency_s=max(rest / rounds, 0.0), bytes_per_second=rounds / ranks * rate)


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
