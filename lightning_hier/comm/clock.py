"""One zero for the clocks of all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lightning_hier.comm.progress_record import progress_record

_ROUNDS = 16


@dataclass(frozen=True)
class CommonZero:
    """A moment that all ranks know.

    Attributes:
        own_s: ``time.perf_counter()`` of this rank at that moment.
        wall_s: seconds since 1970 at that moment by the clock of rank 0; the same on all ranks.

    """

    own_s: float
    wall_s: float


def agree_on_zero(device: torch.device) -> CommonZero:
    """Take the end of a short all-reduce for one moment on all ranks.

    Of several all-reduces it is the one that was quickest on the rank where it took longest. Ranks
    differ by how much later one gets its result than another: less than a round trip between
    hosts. Clocks of hosts drift afterwards, by some milliseconds an hour.

    A collective of the world, if there is a process group: every rank must call it.

    Args:
        device: where tensors of collectives live.

    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return CommonZero(time.perf_counter(), time.time())
    with progress_record().at("a comparison of clocks"):
        return _compare(device)


def _compare(device: torch.device) -> CommonZero:
    small = torch.zeros(1, dtype=torch.float64, device=device)
    ended, took = [], []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        dist.all_reduce(small)
        small.item()  # on a GPU the call returns before the result is there
        ended.append(time.perf_counter())
        took.append(ended[-1] - begun)
    longest = torch.tensor(took, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    own_s = ended[int(longest.argmin())]
    wall = torch.tensor([time.time() - (time.perf_counter() - own_s)], dtype=torch.float64)
    wall = wall.to(device)
    dist.broadcast(wall, src=0)
    return CommonZero(own_s, float(wall.item()))
