"""Block momentum of a stack of models, written from the papers' equations alone.

No code of ``lightning_hier`` is used, so a comparison with its strategies is a check of both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from examples.language.stacked.group_mean import GroupMean
from examples.language.stacked.local_optimizers import AdamW, LocalOptimizer
from examples.language.stacked.settings import Settings


class BlockUpdate:
    """MA, CBM, NBM and BMUF-Adam.

    Args:
        settings: of the run.
        start: weights (P,) from which the first block starts.
        optimizer: of the workers, with the state from which the first block starts.

    Attributes:
        model: W, the global model (P,).
        synchronised: synchronisations so far.

    """

    def __init__(self, settings: Settings, start: Tensor, optimizer: LocalOptimizer) -> None:
        self.model = start.clone()
        self.synchronised = 0
        self._eta = settings.eta
        self._nesterov = settings.system != "bmuf_cbm"
        corrected = settings.corrects if settings.system == "bmuf_adam" else ""
        self._corrects_first = corrected in ("both", "first")
        self._corrects_second = corrected in ("both", "second")
        self._delta = torch.zeros_like(start)
        self._start = start.clone()
        self._rho = 0.0
        self._mean = GroupMean(settings, start)
        self._optimizer = optimizer
        self._pending = 0
        self._moments_every = settings.moments_every
        self._moments_due = settings.moments_every
        self._steps_of_moments = 0
        self._moves_moments = settings.moves_moments
        if self._moves_moments:
            assert isinstance(optimizer, AdamW)
            self._moments = (optimizer.mean[0].clone(), optimizer.square[0].clone())

    def after_step(self, weights: Tensor, step: int, block_size: int) -> None:
        """Synchronise the local models (N, P) after the last step of a block, in place.

        Args:
            weights: of the workers.
            step: in the block, counted from 1.
            block_size: tau.

        """
        self._pending = step
        if step == block_size:
            self.finish(weights)

    def finish(self, weights: Tensor) -> None:
        """Synchronise what is left after the last step of a run, in place."""
        if not self._pending:
            return
        update = self._mean(weights - self._start)  # bmuf eq. 2
        self._delta = self._eta * self._delta + update  # eq. 3
        self.model = self.model + self._delta  # eq. 4
        ahead = self._eta if self._nesterov else 0.0
        self._start = self.model + ahead * self._delta  # eq. 5 and 6
        weights.copy_(self._start)
        if self._moves_moments:
            self._move_moments(self._pending)
        self._optimizer.begin_block()
        self._pending = 0
        self.synchronised += 1

    def _move_moments(self, steps: int) -> None:
        self._rho = self._eta * self._rho + steps  # bmuf_adam eq. 4
        self._steps_of_moments += steps
        self._moments_due -= 1
        if not self._moments_due:
            self._exchange_moments(self._steps_of_moments)
            self._steps_of_moments, self._moments_due = 0, self._moments_every

    def _exchange_moments(self, steps: int) -> None:
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
    """bmuf_adam eq. 18."""
    whole = 1.0 - beta**steps
    of_previous = beta**steps * (beta**ahead - 1.0) / whole
    of_mean = (1.0 - beta ** (steps + ahead)) / whole
    return of_previous * previous + of_mean * mean
