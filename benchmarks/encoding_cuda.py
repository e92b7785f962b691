"""GTC's two passes on a CUDA device beside a copy of the same memory there.

python -m benchmarks.encoding_cuda

A pass reads two tensors and writes one, or the other way round; a copy reads one and writes one. So
a pass that used the device's memory as well as a copy does would take 1.5 times as long.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.encoding import MiddleOfARun
from examples.tables import markdown
from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.reference import TorchKernels

SIZES = (10**6, 6_500_000, 24_300_000, 10**8)
DENSITIES = (1e-3, 1e-2, 1e-1)

_TENSORS_OF_A_PASS = 3
_TENSORS_OF_A_COPY = 2


class Cost(NamedTuple):
    """What one pass takes.

    Attributes:
        kernels_s: the sum of its kernels, as the profiler sees them.
        elapsed_s: from an empty queue to its end, with what the host needs to start them.

    """

    kernels_s: float
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What GTC's passes over one tensor cost, as medians.

    Attributes:
        elements: float32, of the tensor.
        density: elements sent, of all.
        workers: whose words are added up.
        copy_s: a copy of the tensor.
        encode: of ``encode_``, with the wait for the number of words.
        decode: of ``decode_``.
        torch_s: encoding by the reference.

    """

    elements: int
    density: float
    workers: int
    copy_s: float
    encode: Cost
    decode: Cost
    torch_s: float

    @property
    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written."""
        return _TENSORS_OF_A_COPY * 4 * self.elements / self.copy_s

    def share_of_copy(self, seconds: float) -> float:
        """Bandwidth of a pass that takes so long, of that of a copy."""
        return _TENSORS_OF_A_PASS / _TENSORS_OF_A_COPY * self.copy_s / seconds


def measure(elements: int, density: float, workers: int, *, repetitions: int) -> Passes:
    """Of a tensor in the middle of a run."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    run = MiddleOfARun(elements, density, "cuda")
    residual, threshold = run.residual, run.threshold
    flat, copied = torch.empty(2, elements, device=device)
    others = [_random_words(elements, density, device) for _ in range(workers - 1)]
    kernels, sent = kernels_for(flat, residual), []
    found: list[tuple[float, ...]] = []
    for _ in range(repetitions):
        flat.copy_(run.gradient())
        by_torch = _elapsed_s(lambda: TorchKernels().encode_(flat, residual, threshold))
        rounds = []
        for clock in (_elapsed_s, _kernels_s):
            flat.copy_(run.gradient())
            words: list[Tensor] = []
            rounds.append(
                clock(lambda: words.append(kernels.encode_(flat, residual, threshold)[0]))  # noqa: B023
            )
            arguments = flat, residual, words[0], threshold, [*words, *others]
            rounds.append(
                clock(lambda: kernels.decode_(*arguments, [threshold / workers]))  # noqa: B023
            )
            sent.append(words[0].numel())
        found.append((by_torch, _kernels_s(lambda: copied.copy_(flat)), *rounds))
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    by_torch, copy, encode, decode, encode_kernels, decode_kernels = medians
    return Passes(
        elements=elements, density=statistics.fmean(sent) / elements, workers=workers,
        copy_s=copy, encode=Cost(encode_kernels, encode), decode=Cost(decode_kernels, decode),
        torch_s=by_torch,
    )  # fmt: skip


def _elapsed_s(call: Callable[[], object]) -> float:
    """On the device's own clock, from an empty queue."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    marks[0].record()
    call()
    marks[1].record()
    torch.cuda.synchronize()
    return 1e-3 * marks[0].elapsed_time(marks[1])


def _kernels_s(call: Callable[[], object]) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type.name == "CUDA"]
    return 1e-6 * sum(event.device_time_total for event in events)


def _random_words(elements: int, density: float, device: torch.device) -> Tensor:
    """Of a worker that sends this share of its elements."""
    index = (torch.rand(elements, device=device) < density).nonzero().view(-1)
    negative = torch.rand(len(index), device=device) < 0.5
    return (index - (negative.long() << 31)).int()


def _cells(passes: Passes, cost: Cost) -> tuple[str, ...]:
    share = passes.share_of_copy(cost.kernels_s)
    return f"{1e3 * cost.kernels_s:.3f}", f"{share:.0%}", f"{1e3 * cost.elapsed_s:.3f}"


def table(found: Sequence[Passes]) -> str:
    """As Markdown."""
    header = ("elements", "density", "workers", "copy ms", "copy TB/s", "encode ms",
              "of a copy's bandwidth", "elapsed ms", "decode ms", "of a copy's bandwidth",
              "elapsed ms", "encode by torch, elapsed ms")  # fmt: skip
    rows = [
        (
            f"{own.elements:,}",
            f"{own.density:.2%}",
            str(own.workers),
            f"{1e3 * own.copy_s:.3f}",
            f"{own.copy_bandwidth / 1e12:.2f}",
            *_cells(own, own.encode),
            *_cells(own, own.decode),
            f"{1e3 * own.torch_s:.3f}",
        )
        for own in found
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=30)
    options = parser.parse_args()
    print(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, Triton {triton.__version__}\n"
    )
    print(
        table(
            [
                measure(size, density, workers, repetitions=options.repetitions)
                for size in SIZES
                for density in DENSITIES
                for workers in (1, 4)
            ]
        )
    )


if __name__ == "__main__":
    main()
