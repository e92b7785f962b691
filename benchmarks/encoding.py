"""GTC's encoding beside a plain copy of the same memory, one core, by size and density.

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

from benchmarks.performance.figures import spread
from examples.tables import markdown
from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.comm.worker import TensorMemory

SIZES = (10**5, 10**6, 10**7, 5 * 10**7)
DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)

_SIGMA = 1e-3
_WORD_BYTES = 4
_WINDOWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What encoding a tensor and updating its residual costs.

    Attributes:
        elements: of the tensor.
        wanted_density: by which the threshold was set.
        density: elements sent, of all.
        seconds: processor time, the least of all repetitions.
        copy_s: the least that a copy of the tensor took, between the repetitions.

    """

    elements: int
    wanted_density: float
    density: float
    seconds: float
    copy_s: float

    @property
    def ratio(self) -> float:
        """Against one copy."""
        return self.seconds / self.copy_s

    @property
    def payload_bytes(self) -> float:
        """Of the words that are sent."""
        return _WORD_BYTES * self.density * self.elements


def encode(flat: Tensor, memory: TensorMemory) -> int:
    """What a rank does for one tensor at a step, but for sending: as ``GTCReducer`` does it.

    The one place that knows how the reducer's parts are called.

    Returns:
        Words to be sent.

    """
    threshold, kernels = float(memory.threshold or 0.0), kernels_for(flat, memory.residual)
    words, _ = kernels.encode_(flat, memory.residual, threshold)
    kernels.decode_(flat, memory.residual, words, threshold, [], [])
    return words.numel()


class MiddleOfARun:
    """A tensor's gradients, threshold and residuals as they are after many steps.

    Args:
        elements: of the tensor.
        density: share of them that is to be sent at a step.
        device: where all lies.

    Attributes:
        threshold: T.
        residual: flat.

    """

    def __init__(self, elements: int, density: float, device: str = "cpu") -> None:
        generator = torch.Generator(device).manual_seed(0)
        self._elements, self._windows = elements, random.Random(0)
        pool = torch.randn(elements + _WINDOWS, generator=generator, device=device)
        self._pool = pool.mul_(_SIGMA)
        self.threshold = _SIGMA / math.sqrt(density)
        # The long-run spread of a random walk that goes back by T where it leaves [-T, T].
        self.residual = torch.rand(elements, generator=generator, device=device)
        self.residual += torch.rand(elements, generator=generator, device=device)
        self.residual.sub_(1.0).mul_(self.threshold)

    def gradient(self) -> Tensor:
        """Of the next step; not to be changed."""
        start = self._windows.randrange(_WINDOWS)
        return self._pool[start : start + self._elements]


def measure(elements: int, density: float, *, repetitions: int) -> Encoding:
    """Of a tensor in the middle of a run.

    A step and a copy take turns, in processor time, and the least of each is kept: what else the
    machine does can only add to either. The copied memory is as warm as that which was encoded.
    """
    run = MiddleOfARun(elements, density)
    memory = TensorMemory(run.residual, run.threshold)
    flat, copied = torch.empty(elements), torch.empty(elements)
    taken, copies, words = [], [], []
    for _ in range(repetitions):
        flat.copy_(run.gradient())
        begun = time.thread_time()
        words.append(encode(flat, memory))
        encoded = time.thread_time()
        copied.copy_(flat)
        copies.append(time.thread_time() - encoded)
        taken.append(encoded - begun)
    return Encoding(
        elements=elements,
        wanted_density=density,
        density=statistics.fmean(words) / elements,
        seconds=min(taken),
        copy_s=min(copies),
    )


def repetitions_for(elements: int) -> int:
    """As many as find a quiet moment, in bounded time."""
    return max(7, min(200, 10**8 // elements))


def table(runs: Sequence[Sequence[Encoding]]) -> str:
    """As Markdown; runs have the same sizes and densities, in the same order."""
    header = ("elements", "wanted density", "density", "payload bytes an element", "ns an element",
              "of a copy")  # fmt: skip
    rows = [
        (
            f"{same[0].elements:,}",
            f"{same[0].wanted_density:.2%}",
            f"{same[0].density:.2%}",
            f"{same[0].payload_bytes / same[0].elements:.4f}",
            spread([1e9 * own.seconds / own.elements for own in same]),
            spread([own.ratio for own in same]),
        )
        for same in zip(*runs, strict=True)
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="elements at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [size for size in SIZES if size <= options.largest]
    pairs = [(size, density) for size in sizes for density in DENSITIES]
    print(table([[measure(*own, repetitions=repetitions_for(own[0])) for own in pairs]]))


if __name__ == "__main__":
    main()
