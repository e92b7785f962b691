"""The values of a block on its server, and their update."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.psp.round import Round
from lightning_hier.parameter_server.updater import ParameterStates, Updater
from lightning_hier.parameter_server.user_optimizer import Hyperparameters

_log = logging.getLogger(__name__)


class BlockValues:
    """Parameters of a block on the host, in their own dtypes, and their Updater.

    Args:
        block: number, size and dtype.
        tensors: the values, in the block's order; changed in place.
        updater: over these tensors.

    """

    def __init__(self, block: ParameterBlock, tensors: list[Tensor], updater: Updater) -> None:
        self.block = block
        self._tensors = tensors
        self._updater = updater
        self._flat: Tensor | None = None

    def flat(self) -> Tensor:
        """The current values, flat, in the block's dtype; a copy that is never changed."""
        if self._flat is None:
            self._flat = torch.cat([one.reshape(-1).to(self.block.dtype) for one in self._tensors])
        return self._flat

    def adopt(self, flat: Tensor) -> None:
        """Replace the values."""
        for tensor, value in zip(self._tensors, self.block.tensors(flat), strict=True):
            tensor.copy_(value)
        self._flat = None

    def state(self) -> ParameterStates:
        """The optimizer's state, by index of the parameter in the optimizer; copies."""
        return self._updater.state()

    def load(self, states: ParameterStates) -> None:
        """Load the optimizer's state of these parameters."""
        self._updater.load(states)

    def update(
        self, ended: Round, *, rate_factor: float, hyperparameters: Hyperparameters | None
    ) -> bool:
        """``w <- w - rate_factor * lr * Updater(g / d)``; returns whether that was done.

        An update to NaN or inf is undone: the values are restored, and the optimizer's state, which
        may hold them too, is reset.
        """
        mean, before = ended.mean(), self.flat()
        if not all_finite(mean):
            return False
        pieces = mean.split([tensor.numel() for tensor in self._tensors])
        absent = ended.absent or ()
        gradients = [None if at in absent else piece for at, piece in enumerate(pieces)]
        self._updater.step(gradients, rate_factor=rate_factor, hyperparameters=hyperparameters)
        self._flat = None
        if all_finite(self.flat()):
            return True
        _log.warning(
            "an update of block %d is not finite: its values stay as they were, and the state of "
            "its optimizer starts anew",
            self.block.number,
        )
        self.adopt(before)
        self._updater.reset()
        return False
