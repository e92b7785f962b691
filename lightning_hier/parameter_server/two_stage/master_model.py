"""The master's model of one optimizer's parameters, and its update (eq. 4 and 5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.two_stage.opening import read_values_
from lightning_hier.parameter_server.two_stage.replica import shared_dtype
from lightning_hier.parameter_server.updater import Updater
from lightning_hier.parameter_server.user_optimizer import Hyperparameters


class MasterModel:
    """W, and a copy of the user's optimizer that updates it.

    The server loop applies pushes, and the main thread of the same rank copies the state.

    Args:
        optimizer: of the user; it is copied.
        parameters: trained ones; their present values are the first W.

    Attributes:
        version: updates so far.
        dtype: of W and of the sums.

    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        self._parameters = list(parameters)
        self._numel = sum(parameter.numel() for parameter in parameters)
        self.dtype = shared_dtype(parameters)
        self.version = 0
        weights = torch.empty(self._numel, dtype=self.dtype)
        read_values_(parameters, weights)
        held = shaped(weights, parameters)
        updater = Updater(optimizer, held)
        self._values = ServedValues("the master's model", [*held.values()], updater, self.dtype)

    def __len__(self) -> int:
        """Number of elements."""
        return self._numel

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

        Args:
            total: sum of ``count`` gradients, 1-D; read only.
            count: gradients in it, at least 1.
            rate_factor: multiplies the learning rate.
            hyperparameters: of the node's optimizer.
            absent: positions of the parameters without a gradient, which are not updated.

        Returns:
            False if the sum or the new W is not finite: nothing has changed then.

        """
        done = self._values.update(
            total / count, absent=absent, rate_factor=rate_factor, hyperparameters=hyperparameters
        )
        self.version += done
        return done

    def copy(self) -> Tensor:
        """W, 1-D; a copy that is never changed."""
        return self._values.flat()

    def snapshot(self) -> tuple[dict[Parameter, Tensor], Mapping[int, Any]]:
        """Consistent copies of W, by parameter, and of the optimizer's state."""
        flat, state = self._values.snapshot()
        values = shaped(flat.clone(), self._parameters)
        return {own: values[own].to(own.dtype) for own in self._parameters}, state

    def load(self, state: Mapping[int, Any]) -> None:
        """Load the ``state`` of an optimizer's state_dict."""
        self._values.load(dict(state))


def shaped(flat: Tensor, parameters: Sequence[Parameter]) -> dict[Parameter, Tensor]:
    """Views of ``flat`` in the shapes of the parameters."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return {own: piece.view_as(own) for own, piece in zip(parameters, pieces, strict=True)}
