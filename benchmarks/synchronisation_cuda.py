"""Time of a block synchronisation on a CUDA device, without communication.

    python -m benchmarks.synchronisation_cuda

One process is the first of two groups of one rank. Its collectives copy its own values or return at
once, so that only the work of the host and of the device is measured. *Elapsed* is the time from an
empty queue to the end. *Kernels* is the sum of the times of all kernels and copies on the device,
and their number. *Least traffic* is the time of a copy of as many bytes as BMUF must read and
write: the model (4 tensors), and the mean, W and Delta in the outer step (6 tensors). *Memory
between* is what is allocated between two synchronisations, and *memory at most* during one, beside
the model, its gradients and its optimizer.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

import lightning_hier as lh
from benchmarks.opened_blocks import open_blocks
from examples.tables import markdown
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic

_TENSORS_OF_BMUF = 10
_WARM_UP = 2

SYSTEMS: dict[str, BlockSync] = {
    "bmuf": lh.BMUF(block_size=1),
    "bmuf, bfloat16": lh.BMUF(block_size=1, across_dtype="bfloat16"),
    "bmuf, int8": lh.BMUF(block_size=1, across_dtype="int8"),
    "bmuf, int4": lh.BMUF(block_size=1, across_dtype="int4"),
    "diloco": lh.DiLoCo(block_size=1),
    "bmuf_adam": lh.BMUFAdam(block_size=1),
}


class _Echo(Channel):
    """A channel that receives the data that it sends, where the fake process group gives none."""

    def gather_rows(self, own: Tensor, kind: str) -> Tensor:
        return own.expand(self.size, -1).clone()

    def all_to_all(self, output: Tensor, rows: Tensor, kind: str) -> Pending:
        output.copy_(rows.view_as(output))
        return super().all_to_all(output, rows, kind)


class Cost(NamedTuple):
    """Cost of one synchronisation.

    Attributes:
        elapsed_s: median time from an empty queue to the end.
        kernels_s: sum of the times of all kernels.
        kernels: number of kernels.
        bytes_between: bytes that are allocated between two synchronisations, as above.
        bytes_at_most: most bytes that are allocated during one.
        by_name: time of the kernels, by name.

    """

    elapsed_s: float
    kernels_s: float
    kernels: int
    bytes_between: int
    bytes_at_most: int
    by_name: dict[str, float]


def lstm() -> nn.Module:
    """Return the papers' acoustic model, 24.3M parameters."""
    return nn.ModuleList([nn.LSTM(192, 768, 5), nn.Linear(768, 3183)])


def transformer(layers: int, width: int) -> nn.Module:
    """Return the matrices and vectors of the layers of a transformer."""
    shapes: list[tuple[int, ...]] = [
        (3 * width, width),
        (width, width),
        (4 * width, width),
        (width, 4 * width),
    ]
    shapes += [(width,)] * 4
    return nn.ParameterList([torch.zeros(shape) for _ in range(layers) for shape in shapes])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lstm,
    "transformer": lambda: transformer(20, 2048),
}


def optimizer_of(module: nn.Module, config: BlockSync) -> torch.optim.Optimizer:
    """Create the optimizer of a module, and make its first step."""
    kind = torch.optim.AdamW if isinstance(config, lh.BMUFAdam) else torch.optim.SGD
    optimizer = kind(module.parameters(), lr=1e-4)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def blocks_of(
    module: nn.Module, optimizer: torch.optim.Optimizer, config: BlockSync
) -> BlockSynchroniser:
    """Create a synchroniser with blocks of one step. This process is the first of two groups."""
    communicators = Communicators.build(
        RankLayout.two_tiers(1, 2),
        device=next(module.parameters()).device,
        timeout=timedelta(seconds=60),
        traffic=Traffic(),
    )
    across = communicators.route.between
    assert across is not None
    communicators.route.between, communicators.world = (
        _Echo(channel.group, "across", communicators.traffic, communicators.progress)
        for channel in (across, communicators.world)
    )
    return open_blocks(module, optimizer, config, communicators)


def measure(module: nn.Module, config: BlockSync, repetitions: int) -> Cost:
    """Measure the synchronisation of a module on a CUDA device."""
    optimizer, parameters = optimizer_of(module, config), list(module.parameters())
    trained = torch.cuda.memory_allocated()
    blocks = blocks_of(module, optimizer, config)
    elapsed = []
    for _ in range(_WARM_UP + repetitions):
        with torch.no_grad():  # a change in place of a training step
            for parameter in parameters:
                parameter.add_(1e-3)
        torch.cuda.reset_peak_memory_stats()
        elapsed.append(_elapsed_s(lambda: blocks.after_step(0)))
    between, at_most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        blocks.after_step(0)
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    by_name: dict[str, float] = defaultdict(float)
    for event in events:
        by_name[event.name] += 1e-6 * event.device_time_total
    elapsed_s = statistics.median(elapsed[_WARM_UP:])
    return Cost(
        elapsed_s=elapsed_s,
        kernels_s=sum(by_name.values()),
        kernels=len(events),
        bytes_between=between - trained,
        bytes_at_most=at_most - trained,
        by_name=by_name,
    )


def _elapsed_s(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _print_longest(title: str, cost: Cost) -> None:
    longest = sorted(cost.by_name.items(), key=lambda item: -item[1])[:8]
    print(title, *(f"{1e3 * seconds:8.3f} ms {name[:120]}" for name, seconds in longest), sep="\n")


def _copy_s(numel: int, repetitions: int) -> float:
    """Return the time of a copy of ``numel`` float32 values on the device."""
    source, target = torch.ones(2, numel, device="cuda")
    return statistics.median(_elapsed_s(lambda: target.copy_(source)) for _ in range(repetitions))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kernels", action="store_true", help="print the longest kernels, too")
    options = parser.parse_args()
    dist.init_process_group(
        "fake", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=2
    )
    print(f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch "
          f"{torch.__version__}\n")  # fmt: skip
    header = ("model", "synchronisation", "elapsed ms", "kernels ms", "kernels",
              "least traffic of bmuf ms", "elapsed of it", "memory between, models",
              "memory at most, models")  # fmt: skip
    rows = []
    for name in options.models:
        make = MODELS[name]
        numel = sum(parameter.numel() for parameter in make().parameters())
        least_s = _TENSORS_OF_BMUF / 2 * _copy_s(numel, options.repetitions)
        for system, config in SYSTEMS.items():
            torch.manual_seed(0)
            cost = measure(make().cuda(), config, options.repetitions)
            if options.kernels:
                _print_longest(f"{name}, {system}", cost)
            rows.append(
                (
                    name,
                    system,
                    f"{1e3 * cost.elapsed_s:.2f}",
                    f"{1e3 * cost.kernels_s:.2f}",
                    str(cost.kernels),
                    f"{1e3 * least_s:.2f}",
                    f"{cost.elapsed_s / least_s:.2f}",
                    f"{cost.bytes_between / (4 * numel):.2f}",
                    f"{cost.bytes_at_most / (4 * numel):.2f}",
                )
            )
            torch.cuda.empty_cache()
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
