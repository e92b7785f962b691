"""Time of GTC's encoding relative to a copy of the same memory, on one core.

python -m benchmarks.encoding
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.tables import markdown, spread
from lightning_hier.algorithms.kernels import gtc
from lightning_hier.comm.worker import TensorMemory

SIZES = (10**5, 10**6, 10**7, 5 * 10**7)
DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)

_SIGMA = 1e-3
_WORD_BYTES = 4
_WINDOWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Cost of encoding a tensor and updating its residual.

    Attributes:
        elements: number of elements of the tensor.
        wanted_density: density for which the threshold was set.
        density: share of the elements that are sent.
        seconds: processor time, minimum of the repetitions.
        copy_s: processor time of a copy of the tensor, minimum of the repetitions.

    """

    elements: int
    wanted_density: float
    density: float
    seconds: float
    copy_s: float

    @property
    def ratio(self) -> float:
        """Time relative to that of a copy."""
        return self.seconds / self.copy_s

    @property
    def payload_bytes(self) -> float:
        """Bytes of the words that are sent."""
        return _WORD_BYTES * self.density * self.elements


def encode(flat: Tensor, memory: TensorMemory) -> int:
    """Encode and decode one tensor as ``GTCReducer`` does in a step, without communication.

    Returns:
        Number of words to send.

    """
    threshold = float(memory.threshold or 0.0)
    words, _ = gtc.encode_(flat, memory.residual, threshold)
    gtc.decode_(flat, memory.residual, words, threshold, [], [])
    return words.numel()


class SteadyState:
    """Gradients, threshold and residual of a tensor as after many steps.

    Args:
        elements: number of elements of the tensor.
        density: share of the elements that are sent in a step.
        device: device of all tensors.

    Attributes:
        threshold: threshold T.
        residual: residual, a 1-D tensor.

    """

    def __init__(self, elements: int, density: float, device: str = "cpu") -> None:
        generator = torch.Generator(device).manual_seed(0)
        self._elements, self._windows = elements, random.Random(0)
        pool = torch.randn(elements + _WINDOWS, generator=generator, device=device)
        self._pool = pool.mul_(_SIGMA)
        self.threshold = _SIGMA / math.sqrt(density)
        # The stationary distribution of a random walk that moves back by T when it leaves [-T, T].
        self.residual = torch.rand(elements, generator=generator, device=device)
        self.residual += torch.rand(elements, generator=generator, device=device)
        self.residual.sub_(1.0).mul_(self.threshold)

    def gradient(self) -> Tensor:
        """Return the gradient of the next step. The caller must not change it."""
        start = self._windows.randrange(_WINDOWS)
        return self._pool[start : start + self._elements]


def measure(elements: int, density: float, *, repetitions: int) -> Encoding:
    """Measure the encoding of a tensor with residuals as after many steps.

    Steps and copies alternate. The minimum of the processor time counts for both, because other
    load on the machine can only add to it. Both use the caches in the same state.
    """
    state = SteadyState(elements, density)
    memory = TensorMemory(state.residual, state.threshold)
    flat, copied = torch.empty(elements), torch.empty(elements)
    seconds, copies, words = [], [], []
    for _ in range(repetitions):
        flat.copy_(state.gradient())
        begun = time.thread_time()
        words.append(encode(flat, memory))
        encoded = time.thread_time()
        copied.copy_(flat)
        copies.append(time.thread_time() - encoded)
        seconds.append(encoded - begun)
    return Encoding(
        elements=elements,
        wanted_density=density,
        density=statistics.fmean(words) / elements,
        seconds=min(seconds),
        copy_s=min(copies),
    )


def repetitions_for(elements: int) -> int:
    """Return a number of repetitions that gives a stable minimum in bounded time."""
    return max(7, min(200, 10**8 // elements))


def table(runs: Sequence[Sequence[Encoding]]) -> str:
    """Return a table as Markdown. All runs have the same sizes and densities in the same order."""
    header = ("elements", "wanted density", "density", "payload bytes an element", "ns an element",
              "of a copy")  # fmt: skip
    rows = [
        (
            f"{same[0].elements:,}",
            f"{same[0].wanted_density:.2%}",
            f"{same[0].density:.2%}",
            f"{same[0].payload_bytes / same[0].elements:.4f}",
            spread([1e9 * run.seconds / run.elements for run in same]),
            spread([run.ratio for run in same]),
        )
        for same in zip(*runs, strict=True)
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest number of elements")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [size for size in SIZES if size <= options.largest]
    measured = [
        measure(size, density, repetitions=repetitions_for(size))
        for size in sizes
        for density in DENSITIES
    ]
    print(table([measured]))


if __name__ == "__main__":
    main()
