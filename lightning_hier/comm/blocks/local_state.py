"""What happens to the state of a local optimizer when a new block starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer, RMSprop

from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.members import optimizer_parameters


class LocalState:
    """State of one optimizer for the parameters of one block. This base leaves it alone.

    At a synchronisation the methods are called in this order, on every rank: :meth:`note` for each
    local model of the rank, :meth:`collect`, :meth:`advance_` for each piece of a carried tensor in
    this rank's share, :meth:`finish` for each local model.

    Attributes:
        carried: tensors that travel across groups in the collective of the model and come back as
            their mean.
        keeps_previous: whether :meth:`advance_` needs what ``carried`` held after the last
            synchronisation.

    """

    carried: Sequence[Tensor] = ()
    keeps_previous: bool = False

    def note(self, *, first: bool) -> None:
        """Note how the optimizer's state is of the local model that is in the module.

        Args:
            first: whether it is the first of this rank; those that follow add to it.

        """

    def collect(self, participation: Participation) -> None:
        """Prepare, before the model is sent. May start collectives of tier ``across``.

        Args:
            participation: whose models, with the state that travels along, are averaged.

        """

    def advance_(self, tensor: Tensor, mean: Tensor, previous: Tensor | None) -> None:
        """Turn means into what the next block starts from, in place.

        Args:
            tensor: one of ``carried``.
            mean: a piece of its mean, flat; overwritten.
            previous: the same piece after the last synchronisation, if ``keeps_previous``.

        """

    def finish(self) -> None:
        """Set what is left, once the carried tensors have their new values."""

    def inherit(self, older: LocalState) -> None:
        """Take over what the state of the same optimizer with fewer parameters has counted."""

    def counts(self) -> dict[Parameter, list[float]]:
        """What has been counted for each parameter, the same on all ranks."""
        return {}

    def set_counts(self, counts: Mapping[Parameter, list[float]]) -> None:
        """Go on from what :meth:`counts` gave."""

    def go_on(self, counts: Mapping[Parameter, list[float]]) -> None:
        """Begin a block with what :meth:`counts` gave before it, from the state as it is now."""


class ResetMomentum(LocalState):
    """Truncates the momentum of the local SGD at the start of each block (bmuf eq. 8)."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Truncate the momentum of ``optimizer``."""
        self._optimizer = optimizer

    def finish(self) -> None:
        """Set the momentum of all parameters to zero, in place."""
        for parameter in optimizer_parameters(self._optimizer):
            momentum = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                momentum.zero_()


class AveragedMomentum(LocalState):
    """Averages the momentum of the local SGD with the models."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        """Average the momentum of ``parameters``, made where the optimizer will make it.

        A parameter that had no gradient on this rank has no momentum yet, while it may have one on
        another rank; zero is what it stands for.
        """
        groups = {
            parameter: group
            for group in optimizer.param_groups
            if group.get("momentum")
            for parameter in group["params"]
        }
        self.carried = [
            _momentum(optimizer, parameter, groups[parameter])
            for parameter in parameters
            if parameter in groups
        ]


def _momentum(optimizer: Optimizer, parameter: Parameter, group: dict[str, Any]) -> Tensor:
    state = optimizer.state[parameter]
    if not state and isinstance(optimizer, RMSprop):
        # It makes all of its state at the first gradient, or, where it finds some, nothing.
        state["step"] = torch.zeros(())
        for name in ("square_avg", *(["grad_avg"] if group["centered"] else [])):
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    momentum: Tensor = state["momentum_buffer"]
    return momentum
