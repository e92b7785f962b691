"""Float64 twins of SGD and Adam, from their papers' equations."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Sgd:
    """Updater(g) of SGD with momentum, Nesterov momentum and L2 weight decay."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    _velocities: dict[int, Tensor] = field(default_factory=dict)

    def direction(self, index: int, w: Tensor, g: Tensor) -> Tensor:
        """The direction of one parameter, which the learning rate multiplies."""
        g = g + self.weight_decay * w
        v = self.momentum * self._velocities.get(index, torch.zeros_like(g)) + g
        self._velocities[index] = v
        return g + self.momentum * v if self.nesterov else v


@dataclass
class Adam:
    """Updater(g) of Adam (Kingma and Ba 2014, Algorithm 1), with L2 weight decay."""

    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    _moments: dict[int, tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def direction(self, index: int, w: Tensor, g: Tensor) -> Tensor:
        """The direction of one parameter, which the learning rate multiplies."""
        g = g + self.weight_decay * w
        zero = torch.zeros_like(g)
        m, v, t = self._moments.get(index, (zero, zero, 0))
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g**2
        t += 1
        self._moments[index] = m, v, t
        return m / (1 - self.beta1**t) / ((v / (1 - self.beta2**t)).sqrt() + self.eps)
