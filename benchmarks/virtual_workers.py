"""What a worker costs that shares its rank with others: memory, and time for a turn.

    python -m benchmarks.virtual_workers

One rank, parameters with the shapes of the papers' 24M LSTM, SGD with momentum. A turn is compared
with one copy of what differs between two workers, in the same process.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context

import psutil
import torch
from torch import Tensor, nn

from examples.tables import markdown
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.worker_random import WorkerRandom


def _module() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of two_tiered_bmuf_gtc 3.2 with momentum, as after a step."""
    module = nn.ModuleList([nn.LSTM(192, 768, 5), nn.Linear(768, 3183)])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for own in module.parameters():
        own.grad = torch.zeros_like(own)
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _seconds(act: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - begun) / times


def measure(workers: int) -> tuple[float, float, float, float]:
    """State in MB; memory of one more worker in states; seconds of a turn and of a copy."""
    torch.set_num_threads(1)
    module, optimizer = _module()
    held: list[Tensor] = list(module.parameters())
    held += [value for state in optimizer.state.values() for value in state.values()]
    state_bytes = sum(own.nbytes for own in held)
    models = LocalModels(module, [optimizer], workers)
    random = WorkerRandom(workers, torch.device("cpu"))
    before = _resident()
    models.open()
    memory = (_resident() - before) / (workers - 1) / state_bytes

    def turns() -> None:
        for number in models.each():
            with random.of(number):
                pass

    turns()
    of_turn = _seconds(turns, 20) / workers
    spare = [own.clone() for own in held]
    of_copy = _seconds(lambda: torch._foreach_copy_(spare, held), 20)
    return state_bytes / 1e6, memory, of_turn, of_copy


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--runs", type=int, default=5)
    told = parser.parse_args()
    rows = []
    for workers in told.workers:
        # A process each: memory that was freed before would be taken again.
        with get_context("spawn").Pool(1, maxtasksperchild=1) as one:
            found = one.map(measure, [workers] * told.runs, chunksize=1)
        ratios = [of_turn / of_copy for _, _, of_turn, of_copy in found]
        rows.append(
            (
                str(workers),
                f"{found[0][0]:.0f}",
                f"{statistics.median(own[1] for own in found):.2f}",
                f"{1e3 * statistics.median(own[2] for own in found):.2f}",
                f"{1e3 * statistics.median(own[3] for own in found):.1f}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            )
        )
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {told.runs} runs\n")
    header = ("workers", "state, MB", "one more, states", "turn, ms", "copy, ms", "turn / copy")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
