"""Model that every system trains: the LSTM of the papers, on an emulated device or on the CPU.

A step of the emulated device takes a fixed time: one third for the forward pass, two thirds for the
backward pass. The backward pass returns the gradients of the parameters one after the other, from
the last layer to the first. Work of the host during it, such as compressing a bucket, takes
additional time only if it delays a gradient, as with a device that has its own queue. The optimizer
runs on the host. Its time is a part of the step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in the time of a step. The rest is that of the backward pass."""

_GRADIENT_SIZE = 1e-3
_POOL_EXTRA = 1 << 20
_FRAMES, _SEQUENCES = 4, 8


@dataclass(frozen=True, kw_only=True)
class Work:
    """Computation of one rank.

    The defaults are the model of two_tiered_bmuf_gtc 3.2: five LSTM layers of 768 cells, 192
    features and 3183 senones, 24.3 million parameters. A step takes 150 ms, as in the papers.

    Attributes:
        kind: ``"emulated"`` sleeps for the time of a device, ``"computed"`` computes on the host.
        step_s: seconds of a step of the emulated device, update included.
        features: number of inputs of the first layer.
        cells: number of cells of each LSTM layer.
        layers: number of LSTM layers.
        senones: number of outputs.

    """

    kind: Literal["emulated", "computed"] = "emulated"
    step_s: float = 0.15
    features: int = 192
    cells: int = 768
    layers: int = 5
    senones: int = 3183

    @property
    def parameters(self) -> int:
        """Number of elements of the model."""
        inputs = [self.features, *[self.cells] * (self.layers - 1)]
        lstm = sum(4 * self.cells * (width + self.cells + 2) for width in inputs)
        return lstm + self.senones * (self.cells + 1)

    @property
    def model_bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return 4 * self.parameters


class Pool:
    """Gradients of a rank: ranges of a pool of random numbers, with random starts.

    Args:
        rank: seed of the numbers and the starts.
        largest: number of elements of the largest tensor.

    """

    def __init__(self, rank: int, largest: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self._values = torch.randn(largest + _POOL_EXTRA, generator=generator)
        self._values.mul_(_GRADIENT_SIZE)
        self._starts = random.Random(rank)

    def gradient(self, shape: torch.Size) -> Tensor:
        """Return a new tensor of this shape."""
        elements = shape.numel()
        start = self._starts.randrange(self._values.numel() - elements + 1)
        return self._values[start : start + elements].view(shape).clone()


class Device:
    """Emulated device, which sleeps until each gradient of a step is available.

    Args:
        step_s: seconds of a step.
        pool: pool of the gradients.
        sizes: numbers of elements of the parameters, in the order of the forward pass.

    Attributes:
        update_s: seconds of the last update, by which the next forward pass is shorter.

    """

    def __init__(self, step_s: float, pool: Pool, sizes: Sequence[int]) -> None:
        self.pool = pool
        self.update_s = 0.0
        self._step_s = step_s
        self._backward_s = step_s * (1 - FORWARD_SHARE)
        behind = torch.tensor(sizes[::-1], dtype=torch.float64).cumsum(0)
        self._shares = (behind / behind[-1]).tolist()[::-1]
        self._backward_begun: float | None = None

    def forward(self) -> None:
        """Sleep for the time of a forward pass, minus that of the last update."""
        self._backward_begun = None
        time.sleep(max(self._step_s * FORWARD_SHARE - self.update_s, 0.0))

    def backward(self, index: int, shape: torch.Size) -> Tensor:
        """Sleep until the gradient of one parameter is available, and return it."""
        if self._backward_begun is None:
            self._backward_begun = time.perf_counter()
        ready_at = self._backward_begun + self._shares[index] * self._backward_s
        gradient = self.pool.gradient(shape)
        time.sleep(max(ready_at - time.perf_counter(), 0.0))
        return gradient


class _Emulated(Function):
    """Emulated pass of one parameter. A chain through all parameters orders the passes."""

    @staticmethod
    def forward(ctx: Any, chain: Tensor, parameter: Tensor, device: Device, index: int) -> Tensor:
        ctx.device, ctx.index, ctx.shape = device, index, parameter.shape
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        return above[0], ctx.device.backward(ctx.index, ctx.shape), None, None


class WorkModule(pl.LightningModule):
    """LightningModule of a work.

    Args:
        work: the computation.
        rank: rank in the world, which is the seed of the gradients.
        adam: whether the optimizer is Adam instead of SGD.

    """

    def __init__(self, work: Work, rank: int, *, adam: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.work, self.adam = work, adam
        self.lstm = nn.LSTM(work.features, work.cells, work.layers)
        self.senones = nn.Linear(work.cells, work.senones)
        parameters = list(self.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        self._emulated_device = Device(work.step_s, Pool(rank, max(sizes)), sizes)
        self._update_begun = 0.0
        # Autograd calls the backward passes only if the chain requires a gradient.
        self._chain = torch.zeros((), requires_grad=True)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.work.kind == "computed":
            return self._computed()
        self._emulated_device.forward()
        chain = self._chain
        for index, parameter in enumerate(self.parameters()):
            chain = _Emulated.apply(chain, parameter, self._emulated_device, index)
        return chain

    @torch.no_grad()
    def drift(self) -> None:
        """Change the parameters as local steps would, without computing any."""
        for parameter in self.parameters():
            parameter.add_(self._emulated_device.pool.gradient(parameter.shape))

    def _computed(self) -> Tensor:
        frames = torch.randn(_FRAMES, _SEQUENCES, self.work.features)
        labels = torch.randint(self.work.senones, (_FRAMES * _SEQUENCES,))
        hidden, _ = self.lstm(frames)
        return cross_entropy(self.senones(hidden).flatten(0, 1), labels)

    def configure_optimizers(self) -> Optimizer:
        kind = Adam if self.adam else SGD
        optimizer = kind(self.parameters(), lr=1e-6)
        optimizer.register_step_post_hook(self._end_update)
        return optimizer

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self._update_begun = time.perf_counter()

    def _end_update(self, *_: Any) -> None:
        self._emulated_device.update_s = time.perf_counter() - self._update_begun
