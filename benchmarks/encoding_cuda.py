"""Times of GTC's two passes on a CUDA device relative to a copy of the same memory.

python -m benchmarks.encoding_cuda

A pass reads two tensors and writes one, or reads one and writes two. A copy reads one and writes
one. With the memory bandwidth of a copy, a pass would take 1.5 times as long.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.encoding import SteadyState
from examples.tables import markdown
from lightning_hier.algorithms.kernels import gtc, triton_backend

SIZES = (10**6, 6_500_000, 24_300_000, 10**8)
DENSITIES = (1e-3, 1e-2, 1e-1)

_TENSORS_OF_A_PASS = 3
_TENSORS_OF_A_COPY = 2


class Cost(NamedTuple):
    """Times of one pass.

    Attributes:
        kernels_s: sum of the times of its kernels, from the profiler.
        elapsed_s: time from an empty queue to its end, including the launches.

    """

    kernels_s: float
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Median times of GTC's passes over one float32 tensor.

    Attributes:
        elements: number of elements of the tensor.
        density: share of the elements that are sent.
        workers: number of workers whose words are added.
        copy_s: time of a copy of the tensor.
        encode: times of ``encode_``, including the wait for the number of words.
        decode: times of ``decode_``.
        torch_s: time of ``encode_`` in plain torch.

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
        """Bytes per second that a copy reads and writes."""
        return _TENSORS_OF_A_COPY * 4 * self.elements / self.copy_s

    def share_of_copy(self, seconds: float) -> float:
        """Return the bandwidth of a pass of this duration, relative to that of a copy."""
        return _TENSORS_OF_A_PASS / _TENSORS_OF_A_COPY * self.copy_s / seconds


def measure(elements: int, density: float, workers: int, *, repetitions: int) -> Passes:
    """Measure the passes over a tensor with residuals as after many steps."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    state = SteadyState(elements, density, "cuda")
    residual, threshold = state.residual, state.threshold
    flat, copied = torch.empty(2, elements, device=device)
    others = [_random_words(elements, density, device) for _ in range(workers - 1)]
    sent: list[int] = []
    measured: list[tuple[float, ...]] = []
    for _ in range(repetitions):
        flat.copy_(state.gradient())
        with mock.patch.object(triton_backend, "suits", return_value=False):
            by_torch = _elapsed_s(lambda: gtc.encode_(flat, residual, threshold))
        rounds = []
        for clock in (_elapsed_s, _kernels_s):
            flat.copy_(state.gradient())
            words: list[Tensor] = []
            rounds.append(
                clock(lambda: words.append(gtc.encode_(flat, residual, threshold)[0]))  # noqa: B023
            )
            arguments = flat, residual, words[0], threshold, [*words, *others]
            rounds.append(
                clock(lambda: gtc.decode_(*arguments, [threshold / workers]))  # noqa: B023
            )
            sent.append(words[0].numel())
        measured.append((by_torch, _kernels_s(lambda: copied.copy_(flat)), *rounds))
    medians = [statistics.median(column) for column in zip(*measured, strict=True)]
    by_torch, copy, encode, decode, encode_kernels, decode_kernels = medians
    return Passes(
        elements=elements, density=statistics.fmean(sent) / elements, workers=workers,
        copy_s=copy, encode=Cost(encode_kernels, encode), decode=Cost(decode_kernels, decode),
        torch_s=by_torch,
    )  # fmt: skip


def _elapsed_s(call: Callable[[], object]) -> float:
    """Return the time by the clock of the device, from an empty queue."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    marks[0].record()
    call()
    marks[1].record()
    torch.cuda.synchronize()
    return 1e-3 * marks[0].elapsed_time(marks[1])


def _kernels_s(call: Callable[[], object]) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    return 1e-6 * sum(event.device_time_total for event in events)


def _random_words(elements: int, density: float, device: torch.device) -> Tensor:
    """Return random words of a worker that sends this share of its elements."""
    index = (torch.rand(elements, device=device) < density).nonzero().view(-1)
    negative = torch.rand(len(index), device=device) < 0.5
    return (index - (negative.long() << 31)).int()


def _cells(passes: Passes, cost: Cost) -> tuple[str, ...]:
    share = passes.share_of_copy(cost.kernels_s)
    return f"{1e3 * cost.kernels_s:.3f}", f"{share:.0%}", f"{1e3 * cost.elapsed_s:.3f}"


def table(measured: Sequence[Passes]) -> str:
    """Return the table as Markdown."""
    header = ("elements", "density", "workers", "copy ms", "copy TB/s", "encode ms",
              "of a copy's bandwidth", "elapsed ms", "decode ms", "of a copy's bandwidth",
              "elapsed ms", "encode by torch, elapsed ms")  # fmt: skip
    rows = [
        (
            f"{passes.elements:,}",
            f"{passes.density:.2%}",
            str(passes.workers),
            f"{1e3 * passes.copy_s:.3f}",
            f"{passes.copy_bandwidth / 1e12:.2f}",
            *_cells(passes, passes.encode),
            *_cells(passes, passes.decode),
            f"{1e3 * passes.torch_s:.3f}",
        )
        for passes in measured
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure, and print the table."""
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
