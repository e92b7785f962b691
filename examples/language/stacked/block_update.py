"""Block momentum of a stack of models, written from the papers' equations.

It uses no code of ``lightning_hier``, so a comparison with the strategies checks both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from examples.language.stacked.group_mean import GroupMean
from examples.language.stacked.local_optimizers import AdamW, LocalOptimizer
from examples.language.stacked.settings import Settings


class BlockUpdate:
    """Global update of MA, CBM, NBM and BMUF-Adam.

    Args:
        settings: settings of the run.
        start: weights (P,) at the start of the first block.
        optimizer: optimizer of the workers, in its state at the start of the first block.

    Attributes:
        model: W, the global model (P,).
        synchronised: number of synchronisations so far.

    """

    def __init__(self, settings: Settings, start: Tensor, optimizer: LocalOptimizer) -> None:
        self.model = start.clone()
        self.synchronised = 0
        self._eta = settings.eta
        self._nesterov = settings.system != "bmuf_cbm"
        corrects = settings.corrects if settings.system == "bmuf_adam" else ""
        self._corrects_first = corrects in ("both", "first")
        self._corrects_second = corrects in ("both", "second")
        self._delta = torch.zeros_like(start)
        self._start = start.clone()
        self._rho = 0.0
        self._mean = GroupMean(settings, start)
        self._optimizer = optimizer
        self._pending_steps = 0
        self._moments_every = settings.moments_every
        self._blocks_until_exchange = settings.moments_every
        self._steps_since_exchange = 0
        self._exchanges_moments = settings.exchanges_moments
        if self._exchanges_moments:
            assert isinstance(optimizer, AdamW)
            self._moments = (optimizer.mean[0].clone(), optimizer.square[0].clone())

    def after_step(self, weights: Tensor, step: int, block_size: int) -> None:
        """Synchronise the local models (N, P) after the last step of a block, in place.

        Args:
            weights: weights of the workers.
            step: step of the block, counted from 1.
            block_size: tau, number of steps of the block.

        """
        self._pending_steps = step
        if step == block_size:
            self.finish(weights)

    def finish(self, weights: Tensor) -> None:
        """Synchronise steps that have not been synchronised at the end of a run, in place."""
        if not self._pending_steps:
            return
        update = self._mean(weights - self._start)  # bmuf eq. 2
        self._delta = self._eta * self._delta + update  # eq. 3
        self.model = self.model + self._delta  # eq. 4
        ahead = self._eta if self._nesterov else 0.0
        self._start = self.model + ahead * self._delta  # eq. 5 and 6
        weights.copy_(self._start)
        if self._exchanges_moments:
            self._count_block(self._pending_steps)
        self._optimizer.begin_block()
        self._pending_steps = 0
        self.synchronised += 1

    def _count_block(self, steps: int) -> None:
        """Exchange the moments if enough blocks have passed since the last exchange."""
        self._rho = self._eta * self._rho + steps  # bmuf_adam eq. 4
        self._steps_since_exchange += steps
        self._blocks_until_exchange -= 1
        if not self._blocks_until_exchange:
            self._exchange_moments(self._steps_since_exchange)
            self._steps_since_exchange, self._blocks_until_exchange = 0, self._moments_every

    def _exchange_moments(self, steps: int) -> None:
        """Average the moments of the workers, and correct them for the momentum of the model."""
        adam = self._optimizer
        assert isinstance(adam, AdamW)
        first, second = self._mean.of_state(adam.mean), self._mean.of_state(adam.square)
        ahead = self._eta * self._rho
        if self._corrects_first:
            first = _corrected(first, self._moments[0], adam.betas[0], steps, ahead)
        if self._corrects_second:
            second = _corrected(second, self._moments[1], adam.betas[1], steps, ahead)
            second.clamp_(min=0.0)
            adam.count += ahead
        self._moments = (first, second)
        adam.mean.copy_(first)
        adam.square.copy_(second)


def _corrected(mean: Tensor, previous: Tensor, beta: float, steps: int, ahead: float) -> Tensor:
    """Return the corrected moment, bmuf_adam eq. 18."""
    denominator = 1.0 - beta**steps
    previous_weight = beta**steps * (beta**ahead - 1.0) / denominator
    mean_weight = (1.0 - beta ** (steps + ahead)) / denominator
    return previous_weight * previous + mean_weight * mean
