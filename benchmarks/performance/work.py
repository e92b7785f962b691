"""What every system trains: the papers' LSTM, computed on an emulated device or on this machine.

The device that is emulated takes a fixed time for a step, a third of it in the forward pass and two
thirds spread over the backward pass, in which the gradients of the parameters come one after the
other, the last layer's first. What the host does meanwhile (compressing a bucket, sending it)
costs time only where it makes a gradient late, as beside a device with a queue of its own. The
update is the optimizer's own, on the host; its time counts as part of the step's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

FORWARD_SHARE = 1 / 3
"""Of a step; the backward pass has the rest."""

_GRADIENT_SIZE = 1e-3
_POOL_BESIDES_LARGEST = 1 << 20
_FRAMES, _SEQUENCES = 4, 8


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one rank computes.

    The defaults are the model of two_tiered_bmuf_gtc 3.2: five LSTM layers of 768 cells over 192
    features and 3183 senones, 24.3 million parameters; 150 ms a step, as the papers' devices take.

    Attributes:
        kind: ``"emulated"`` sleeps for the time of a device; ``"computed"`` computes on the host.
        step_s: of a step of the emulated device, update included.
        features: inputs of the first layer.
        cells: of each LSTM layer.
        layers: LSTM layers.
        senones: outputs.

    """

    kind: Literal["emulated", "computed"] = "emulated"
    step_s: float = 0.15
    features: int = 192
    cells: int = 768
    layers: int = 5
    senones: int = 3183

    @property
    def parameters(self) -> int:
        """Elements of the model."""
        inputs = [self.features, *[self.cells] * (self.layers - 1)]
        lstm = sum(4 * self.cells * (width + self.cells + 2) for width in inputs)
        return lstm + self.senones * (self.cells + 1)

    @property
    def model_bytes(self) -> int:
        """Of the parameters, in float32."""
        return 4 * self.parameters


class Pool:
    """Gradients of a rank: windows into random numbers, at another place for every step and tensor.

    Args:
        rank: whose gradients; every rank has numbers and windows of its own.
        largest: elements of the largest tensor.

    """

    def __init__(self, rank: int, largest: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self._values = torch.randn(largest + _POOL_BESIDES_LARGEST, generator=generator)
        self._values.mul_(_GRADIENT_SIZE)
        self._places = random.Random(rank)

    def gradient(self, shape: torch.Size) -> Tensor:
        """A tensor of its own, of this shape."""
        elements = shape.numel()
        start = self._places.randrange(self._values.numel() - elements + 1)
        return self._values[start : start + elements].view(shape).clone()


class Device:
    """The pace of an emulated device: when each gradient of a step is there.

    Args:
        step_s: of a whole step.
        pool: of the gradients.
        sizes: elements of the parameters, in the order of the forward pass.

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
        """Compute the forward pass, shorter by what the update before it took of the step."""
        self._backward_begun = None
        time.sleep(max(self._step_s * FORWARD_SHARE - self.update_s, 0.0))

    def backward(self, index: int, shape: torch.Size) -> Tensor:
        """The gradient of one parameter, once the device has come to it."""
        if self._backward_begun is None:
            self._backward_begun = time.perf_counter()
        ready_at = self._backward_begun + self._shares[index] * self._backward_s
        gradient = self.pool.gradient(shape)
        time.sleep(max(ready_at - time.perf_counter(), 0.0))
        return gradient


class _Emulated(Function):
    """One parameter's part of an emulated pass; a chain orders the parts."""

    @staticmethod
    def forward(ctx: Any, chain: Tensor, parameter: Tensor, device: Device, index: int) -> Tensor:
        ctx.device, ctx.index, ctx.shape = device, index, parameter.shape
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        return above[0], ctx.device.backward(ctx.index, ctx.shape), None, None


class WorkModule(pl.LightningModule):
    """The model of a work; the optimizer is plain SGD unless ``adam``.

    Args:
        work: what to compute.
        rank: of all ranks; gradients differ between them.
        adam: whether the optimizer is Adam.

    """

    def __init__(self, work: Work, rank: int, *, adam: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.work, self.adam = work, adam
        self.lstm = nn.LSTM(work.features, work.cells, work.layers)
        self.senones = nn.Linear(work.cells, work.senones)
        parameters = list(self.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        self._pace = Device(work.step_s, Pool(rank, max(sizes)), sizes)
        self._update_begun = 0.0
        # The chain must require a gradient for the parts to have a backward pass at all.
        self._chain = torch.zeros((), requires_grad=True)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.work.kind == "computed":
            return self._computed()
        self._pace.forward()
        chain = self._chain
        for index, parameter in enumerate(self.parameters()):
            chain = _Emulated.apply(chain, parameter, self._pace, index)
        return chain

    @torch.no_grad()
    def drift(self) -> None:
        """Move the parameters as some local steps would, without taking any."""
        for parameter in self.parameters():
            parameter.add_(self._pace.pool.gradient(parameter.shape))

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
        self._pace.update_s = time.perf_counter() - self._update_begun


def batches(number: int) -> Iterator[Tensor]:
    """So many of them, all empty: the work makes its own data."""
    return iter([torch.zeros(1)] * number)
