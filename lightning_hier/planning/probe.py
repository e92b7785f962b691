"""Measures links within and between hosts, by the times of all-reduces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.planning.network import Link

SIZES: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of the tensors."""

_KIND = "probe"
# Repetitions of each size, if they take so many seconds at most. A slow link gets fewer.
_REPEATS, _LIMIT_S = 20, 2.0
_COPIED_BYTES, _COPIES = 1 << 26, 7


def measure_links(communicators: Communicators) -> tuple[Link | None, Link | None, float | None]:
    """Measure the links within hosts, then those between hosts, while they are otherwise idle.

    The ranks of each host, and then the first ranks of all hosts, all send at the same time, as in
    training. Every rank must call this function.

    Args:
        communicators: communicators with one group for each host.

    Returns:
        On every rank, the link within the slowest host, the link between hosts, and the bytes that
        a rank sends and receives in a second of processor time. None if there is no such link.

    Raises:
        PeerError: a rank did not take part within the time limit. The error names it.

    """
    group, across, device = communicators.group, communicators.across, communicators.device
    own: dict[str, tuple[float, float, float]] = {}
    for where, ring, is_member in ("within", group, True), ("between", across, group.position == 0):
        with communicators.progress.at(f"measuring the links {where} hosts"):
            if ring.size > 1 and is_member:
                own[where] = _read(ring, device)
            # The other ranks wait, because their messages would share the links.
            communicators.world.all_reduce_(torch.zeros(1, device=device), _KIND).wait()
    with communicators.progress.at("the exchange of the measurements"):
        rows = gather_json(own, device)
    rates = [rate for row in rows for *_, rate in row.values()]
    return _slowest(rows, "within"), _slowest(rows, "between"), min(rates, default=None)


def _slowest(rows: Sequence[Mapping[str, list[float]]], where: str) -> Link | None:
    found = [row[where] for row in rows if where in row]
    if not found:
        return None
    bytes_per_second, latency_s, _ = min(found)
    return Link(bytes_per_second=bytes_per_second, latency_s=latency_s)


def _read(ring: Channel, device: torch.device) -> tuple[float, float, float]:
    """Rate and latency of the link, and bytes sent and received in a second of processor time."""
    times, busy_s = {}, 0.0
    # In increasing order: the processor time that is kept is that of the largest size.
    for size in SIZES:
        times[size], busy_s = _time(ring, torch.zeros(size // 4, device=device))
    link = fit_ring(ring.size, times)
    handled = 4 * (ring.size - 1) / ring.size * SIZES[-1]
    return link.bytes_per_second, link.latency_s, handled / max(busy_s, 1e-9)


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
