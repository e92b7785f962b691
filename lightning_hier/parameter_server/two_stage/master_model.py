"""The master's model of one optimizer's parameters, and its update (eq. 4 and 5)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.two_stage.opening import read_values_
from lightning_hier.parameter_server.two_stage.replica import shared_dtype
from lightning_hier.parameter_server.updater import Updater
from lightning_hier.parameter_server.user_optimizer import Hyperparameters

_log = logging.getLogger(__name__)


class MasterModel:
    """W, and a copy of the user's optimizer that updates it.

    The server loop applies pushes, and the main thread of the same rank copies the state. A lock
    makes them exclude each other.

    Args:
        optimizer: of the user; it is copied.
        parameters: trained ones; their present values are the first W.

    Attributes:
        version: updates so far.

    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        self._parameters = list(parameters)
        numel = sum(parameter.numel() for parameter in parameters)
        self._weights = torch.empty(numel, dtype=shared_dtype(parameters))
        read_values_(parameters, self._weights)
        self._updater = Updater(optimizer, shaped(self._weights, parameters))
        self._copy: Tensor | None = None
        self._lock = threading.Lock()
        self.version = 0

    def __len__(self) -> int:
        """Number of elements."""
        return self._weights.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Of W and of the sums."""
        return self._weights.dtype

    @torch.no_grad()
    def apply(
        self,
        total: Tensor,
        count: int,
        *,
        rate_factor: float,
        hyperparameters: Hyperparameters,
        absent: Collection[int] = (),
    ) -> bool:
        """W <- W - gamma * total, by the optimizer: a step with the mean gradient total / count.

            For SGD at rate eta this is eq. 4 with gamma = eta / count (eq. 5), whatever the count.
            An update to NaN or inf is undone: W is restored, and the optimizer's state, which
            may hold them too, is reset.

            Args:
                total: sum of ``count`` gradients, 1-D; read only.
                count: gradients in it, at least 1.
                rate_factor: multiplies the learning rate.
        hyperparameters: of the node's optimizer.
                absent: positions of the parameters without a gradient, which are not updated.

            Returns:
                Whether it was done: not if the sum or the new W is not finite.

        """
        if not all_finite(total):
            return False
        pieces = (total / count).split([parameter.numel() for parameter in self._parameters])
        mean = [None if place in absent else piece for place, piece in enumerate(pieces)]
        before = self.copy()
        with self._lock:
            self._updater.step(mean, rate_factor=rate_factor, hyperparameters=hyperparameters)
            if all_finite(self._weights):
                self.version += 1
                self._copy = None
                return True
            self._weights.copy_(before)
            self._updater.reset()
        _log.warning(
            "an update of the master's model is not finite: it stays as it was, and the state of "
            "its optimizer starts anew"
        )
        return False

    def copy(self) -> Tensor:
        """W, 1-D; a copy that is never changed."""
        with self._lock:
            if self._copy is None:
                self._copy = self._weights.clone()
            return self._copy

    def snapshot(self) -> tuple[dict[Parameter, Tensor], Mapping[int, Any]]:
        """Consistent copies of W, by parameter, and of the optimizer's state."""
        with self._lock:
            weights = self._weights.clone()
            state = self._updater.state()
        values = shaped(weights, self._parameters)
        return {own: values[own].to(own.dtype) for own in self._parameters}, state

    def load(self, state: Mapping[int, Any]) -> None:
        """Load the ``state`` of an optimizer's state_dict."""
        with self._lock:
            self._updater.load(state)


def shaped(flat: Tensor, parameters: Sequence[Parameter]) -> dict[Parameter, Tensor]:
    """Views of ``flat`` in the shapes of the parameters."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return {own: piece.view_as(own) for own, piece in zip(parameters, pieces, strict=True)}
