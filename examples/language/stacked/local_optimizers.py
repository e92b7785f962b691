"""Local optimizers for a stack of models: AdamW and SGD."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from examples.language.stacked.settings import MOMENTUM, WEIGHT_DECAY

_EPSILON = 1e-8


class LocalOptimizer(ABC):
    """Optimizer of M models, whose weights are the rows of one matrix."""

    @abstractmethod
    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """Take one step with every model, in place."""

    @abstractmethod
    def repeat(self, models: int) -> None:
        """Copy the state of the only model to ``models`` models."""

    @abstractmethod
    def begin_block(self) -> None:
        """Reset the state that is not kept from one block to the next."""


class AdamW(LocalOptimizer):
    """Adam with decoupled weight decay.

    Args:
        like: weights (M, P).
        decayed: (P,), 1 for elements with weight decay, otherwise 0.
        betas: betas of the first and the second moment.

    Attributes:
        mean: first moments (M, P).
        square: second moments (M, P).
        count: k, step count of the bias correction.

    """

    def __init__(self, like: Tensor, decayed: Tensor, betas: tuple[float, float]) -> None:
        self.betas = betas
        self.mean = torch.zeros_like(like)
        self.square = torch.zeros_like(like)
        self.count = 0.0
        self._decayed = decayed * WEIGHT_DECAY

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """Take one step with every model, in place."""
        first, second = self.betas
        self.count += 1.0
        weights.mul_(1.0 - rate * self._decayed)
        self.mean.lerp_(gradients, 1.0 - first)
        self.square.mul_(second).addcmul_(gradients, gradients, value=1.0 - second)
        correction = (1.0 - second**self.count) ** 0.5
        scale = self.square.sqrt().div_(correction).add_(_EPSILON)
        weights.addcdiv_(self.mean, scale, value=-rate / (1.0 - first**self.count))

    def repeat(self, models: int) -> None:
        """Copy the moments of the only model to ``models`` models."""
        self.mean = self.mean.repeat(models, 1)
        self.square = self.square.repeat(models, 1)

    def begin_block(self) -> None:
        """Keep the whole state."""


class SGD(LocalOptimizer):
    """SGD with momentum, which is reset to 0 at the start of each block, as in the papers.

    Args:
        like: weights (M, P).

    """

    def __init__(self, like: Tensor) -> None:
        self._momentum = torch.zeros_like(like)

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """Take one step with every model, in place."""
        self._momentum.mul_(MOMENTUM).add_(gradients)
        weights.add_(self._momentum, alpha=-rate)

    def repeat(self, models: int) -> None:
        """Copy the momentum of the only model to ``models`` models."""
        self._momentum = self._momentum.repeat(models, 1)

    def begin_block(self) -> None:
        """Reset the momentum."""
        self._momentum.zero_()
