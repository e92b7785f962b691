"""From what was timed to what plans are made of."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import torch

from lightning_hier.algorithms.planning.fitting import fit_link, fit_ring
from lightning_hier.algorithms.planning.network import Link, Processor
from lightning_hier.cli.measure.job import Job
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.probe import LinkReading, Operation, Where

_COPIED_BYTES = 1 << 26
_COPIES = 7


def pairs_of(readings: Sequence[LinkReading], where: Where) -> dict[tuple[int, ...], Link]:
    """The link between each two ranks that have sent each other messages."""
    found = _seconds(readings, where, "send")
    return {ranks: fit_link(seconds) for ranks, seconds in found.items()}


def link_of(readings: Sequence[LinkReading], where: Where) -> Link | None:
    """What training will find: the link of a ring in which all send at the same time.

    Where there are several rings, that of the smallest bandwidth; None where there is none. Single
    messages find more: they have a link for themselves, and what saves up a right to send while the
    other direction is busy (the token buckets of many clouds) lets them through at once.
    """
    found = _seconds(readings, where, "all_reduce")
    links = [fit_ring(len(ranks), seconds) for ranks, seconds in found.items()]
    return min(links, key=lambda link: link.bytes_per_second, default=None)


def copy_speed(job: Job) -> float:
    """Bytes per second that a rank copies while all others do so too, each on a core of its own.

    The median rank's. A collective of the world: every rank must call it.
    """
    speed: float = median(gather_json(_copy_speed(job.device), job.device))
    if job.device.type == "cuda":
        return speed
    # Ranks that take turns on a core get a part of its time each.
    return speed * max(job.devices / cores(), 1.0)


def cores() -> int:
    """That the ranks of this host may run on."""
    return len(os.sched_getaffinity(0))


def processor_of(
    readings: Sequence[LinkReading], copy_bytes_per_second: float, device: torch.device
) -> Processor:
    """What a host's cores can do with bytes; a GPU moves its own, and wants no core."""
    if device.type == "cuda":
        return Processor(copy_bytes_per_second=copy_bytes_per_second)
    sends = [r for r in readings if r.operation == "send"]
    largest = max((r.payload_bytes for r in sends), default=0)
    # A message one way and one back: as many bytes sent as received, half of both a way.
    speeds = [
        largest / r.processor_s for r in sends if r.payload_bytes == largest and r.processor_s > 0
    ]
    return Processor(
        cores=cores(),
        copy_bytes_per_second=copy_bytes_per_second,
        socket_bytes_per_second=min(speeds, default=None),
    )


def _seconds(
    readings: Sequence[LinkReading], where: Where, operation: Operation
) -> dict[tuple[int, ...], dict[int, float]]:
    """For those who took part in each, how long it took by size."""
    found: defaultdict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for reading in readings:
        if (reading.where, reading.operation) == (where, operation):
            found[reading.ranks][reading.payload_bytes] = reading.seconds
    return found


def _copy_speed(device: torch.device) -> float:
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.zeros_like(source)
    times = []
    for _ in range(_COPIES):
        begun = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return _COPIED_BYTES / median(times)
