"""AdamW and SGD for a stack of models."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from examples.language.stacked.settings import MOMENTUM, WEIGHT_DECAY

_EPSILON = 1e-8


class LocalOptimizer(ABC):
    """Steps of M models, rows of one matrix."""

    @abstractmethod
    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """One step of every model, in place."""

    @abstractmethod
    def repeat(self, models: int) -> None:
        """Give each of so many models the state of the one that has been trained."""

    @abstractmethod
    def begin_block(self) -> None:
        """Forget what does not go on from one block to the next."""


class AdamW(LocalOptimizer):
    """Adam with decoupled weight decay.

    Args:
        like: weights (M, P).
        decayed: (P,), 1 where weight decay acts.
        betas: of the first and the second moment.

    Attributes:
        mean: first moments (M, P).
        square: second moments (M, P).
        count: k, steps by which the bias is corrected.

    """

    def __init__(self, like: Tensor, decayed: Tensor, betas: tuple[float, float]) -> None:
        self.betas = betas
        self.mean = torch.zeros_like(like)
        self.square = torch.zeros_like(like)
        self.count = 0.0
        self._decayed = decayed * WEIGHT_DECAY

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """One step of every model, in place."""
        first, second = self.betas
        self.count += 1.0
        weights.mul_(1.0 - rate * self._decayed)
        self.mean.lerp_(gradients, 1.0 - first)
        self.square.mul_(second).addcmul_(gradients, gradients, value=1.0 - second)
        correction = (1.0 - second**self.count) ** 0.5
        scale = self.square.sqrt().div_(correction).add_(_EPSILON)
        weights.addcdiv_(self.mean, scale, value=-rate / (1.0 - first**self.count))

    def repeat(self, models: int) -> None:
        """Give each of so many models the moments of the one that has been trained."""
        self.mean = self.mean.repeat(models, 1)
        self.square = self.square.repeat(models, 1)

    def begin_block(self) -> None:
        """Keep everything."""


class SGD(LocalOptimizer):
    """SGD with momentum, which starts from 0 in each block, as in the papers.

    Args:
        like: weights (M, P).

    """

    def __init__(self, like: Tensor) -> None:
        self._momentum = torch.zeros_like(like)

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> None:
        """One step of every model, in place."""
        self._momentum.mul_(MOMENTUM).add_(gradients)
        weights.add_(self._momentum, alpha=-rate)

    def repeat(self, models: int) -> None:
        """Give each of so many models the momentum of the one that has been trained."""
        self._momentum = self._momentum.repeat(models, 1)

    def begin_block(self) -> None:
        """Forget the momentum."""
        self._momentum.zero_()
