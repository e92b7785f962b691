"""Times an exchange of short rows of all ranks: by an all-gather, by a gather and a broadcast.

    torchrun --nproc-per-node 16 -m benchmarks.small_gathers

A rank waits for the last one, so the median over repetitions of rank 0 counts.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.joined import joined
from lightning_hier.comm.channel import gather_rows

_ELEMENTS = 9
"""Of float64: a health report of one rank."""

_REPETITIONS, _TURNS = 20, 5


def _all_gather(own: torch.Tensor) -> None:
    dist.all_gather_into_tensor(own.new_empty(dist.get_world_size() * own.numel()), own)


def _gather_and_broadcast(own: torch.Tensor) -> None:
    world: Any = dist.group.WORLD
    gather_rows(own, world)


def main() -> None:
    """Print the median of each turn, in milliseconds."""
    torch.set_num_threads(1)
    own = torch.zeros(_ELEMENTS, dtype=torch.float64)
    with joined():
        for exchange in (_all_gather, _gather_and_broadcast):
            medians = []
            for _ in range(_TURNS):
                seconds = []
                for _ in range(_REPETITIONS):
                    dist.barrier()
                    begun = time.perf_counter()
                    exchange(own)
                    seconds.append(time.perf_counter() - begun)
                medians.append(1e3 * statistics.median(seconds))
            if dist.get_rank() == 0:
                low, middle, high = min(medians), statistics.median(medians), max(medians)
                name = exchange.__name__.strip("_")
                print(f"{dist.get_world_size()} ranks, {name}: {middle:.2f} ms ({low:.2f} to "
                      f"{high:.2f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
