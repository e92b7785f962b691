"""Cost of virtual workers: memory of a worker, and time to switch between workers.

    python -m benchmarks.virtual_workers

One rank with the papers' LSTM of 24M parameters and SGD with momentum. The time of a switch is
relative to that of a copy of a worker's state in the same process.
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
    """Create the model of two_tiered_bmuf_gtc 3.2 and its optimizer, with momentum buffers."""
    module = nn.ModuleList([nn.LSTM(192, 768, 5), nn.Linear(768, 3183)])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
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
    """Measure a number of virtual workers.

    Returns:
        Size of a worker's state in MB, memory of one more worker relative to it, seconds of a
        switch, and seconds of a copy.

    """
    torch.set_num_threads(1)
    module, optimizer = _module()
    tensors: list[Tensor] = list(module.parameters())
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    state_bytes = sum(tensor.nbytes for tensor in tensors)
    models = LocalModels(module, [optimizer], workers)
    random = WorkerRandom(workers, torch.device("cpu"))
    before = _resident()
    models.open()
    memory = (_resident() - before) / (workers - 1) / state_bytes

    def switch_to_all() -> None:
        for number in models.each():
            with random.of(number):
                pass

    switch_to_all()
    switch_s = _seconds(switch_to_all, 20) / workers
    copies = [tensor.clone() for tensor in tensors]
    copy_s = _seconds(lambda: torch._foreach_copy_(copies, tensors), 20)
    return state_bytes / 1e6, memory, switch_s, copy_s


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for workers in options.workers:
        # A new process for each run, because freed memory of an earlier one would be used again.
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            measured = pool.map(measure, [workers] * options.runs, chunksize=1)
        ratios = [switch_s / copy_s for _, _, switch_s, copy_s in measured]
        rows.append(
            (
                str(workers),
                f"{measured[0][0]:.0f}",
                f"{statistics.median(run[1] for run in measured):.2f}",
                f"{1e3 * statistics.median(run[2] for run in measured):.2f}",
                f"{1e3 * statistics.median(run[3] for run in measured):.1f}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            )
        )
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.runs} runs\n")
    header = ("workers", "state, MB", "one more, states", "turn, ms", "copy, ms", "turn / copy")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
