"""Time of an exchange of short rows: by an all-gather, or by a gather and a broadcast.

    torchrun --nproc-per-node 16 -m benchmarks.small_gathers

Times are those of rank 0. The median over the repetitions counts, because of slow ranks.
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
"""Number of float64 values in the health report of a rank."""

_REPETITIONS, _ROUNDS = 20, 5


def _all_gather(row: torch.Tensor) -> None:
    dist.all_gather_into_tensor(row.new_empty(dist.get_world_size() * row.numel()), row)


def _gather_and_broadcast(row: torch.Tensor) -> None:
    world: Any = dist.group.WORLD
    gather_rows(row, world)


def main() -> None:
    """Print the median time of an exchange in milliseconds, and its range over the rounds."""
    torch.set_num_threads(1)
    row = torch.zeros(_ELEMENTS, dtype=torch.float64)
    with joined():
        for exchange in (_all_gather, _gather_and_broadcast):
            medians = []
            for _ in range(_ROUNDS):
                seconds = []
                for _ in range(_REPETITIONS):
                    dist.barrier()
                    begun = time.perf_counter()
                    exchange(row)
                    seconds.append(time.perf_counter() - begun)
                medians.append(1e3 * statistics.median(seconds))
            if dist.get_rank() == 0:
                low, middle, high = min(medians), statistics.median(medians), max(medians)
                name = exchange.__name__.strip("_")
                print(f"{dist.get_world_size()} ranks, {name}: {middle:.2f} ms ({low:.2f} to "
                      f"{high:.2f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
