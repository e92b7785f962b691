"""Model of the master for one optimizer's parameters, and its update (eq. 4 and 5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.two_stage.replica import shared_dtype
from lightning_hier.parameter_server.updater import Updater
from lightning_hier.parameter_server.user_optimizer import Hyperparameters


class MasterModel(ServedValues):
    """W, and a copy of the user's optimizer that updates it.

    The server loop applies pushes, and the main thread of the same rank copies the state.

    Args:
        optimizer: optimizer of the user; it is copied.
        parameters: trained parameters. Their current values are the first W.

    Attributes:
        version: number of updates.
        form: dtype and number of elements of W, and of the sums of gradients.

    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        dtype = shared_dtype(parameters)
        # Copies, because on the CPU the master would otherwise update the module of rank 0.
        tensors = [p.detach().to("cpu", dtype, copy=True).contiguous() for p in parameters]
        updater = Updater(optimizer, dict(zip(parameters, tensors, strict=True)))
        super().__init__("the master's model", tensors, updater, dtype)
        self.version = 0
        self.form = dtype, sum(parameter.numel() for parameter in parameters)

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

        For SGD with learning rate eta, this is eq. 4 with gamma = eta / count (eq. 5).

        Args:
            total: sum of ``count`` gradients, 1-D, not changed.
            count: number of gradients, at least 1.
            rate_factor: factor of the learning rate.
            hyperparameters: hyperparameters of the node's optimizer.
            absent: positions of the parameters without a gradient, which are not updated.

        Returns:
            False if the sum or the new W is not finite. Then nothing is changed.

        """
        done = self.update(
            total / count, absent=absent, rate_factor=rate_factor, hyperparameters=hyperparameters
        )
        # Only of updates that were made: staleness counts versions.
        self.version += done
        return done
