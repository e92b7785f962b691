"""Settings of a local optimizer in its steps, and its state at the start of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import ASGD, SGD, Optimizer, RMSprop

from lightning_hier.comm.blocks.health import Averaging


def steps_by_rate(optimizer: Optimizer) -> bool:
    """Whether a step is a sum of gradients times the learning rate, and has no length of its own.

    Steps that an optimizer has normalised, as Adam does, are about as long whatever the noise, so
    that the mean of N of them is shorter than each.
    """
    return isinstance(optimizer, (SGD, ASGD))


@contextmanager
def stepping_with(
    optimizer: Optimizer, changes: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[None]:
    """Make an optimizer step with other settings than the user's.

    A value that a hook of the user sets within the step stays afterwards.

    Args:
        optimizer: optimizer of this rank.
        changes: new settings of a parameter group, by name.

    """
    new = [changes(group) for group in optimizer.param_groups]
    groups = list(zip(optimizer.param_groups, new, strict=True))
    before = [{name: group[name] for name in own} for group, own in groups]
    for group, own in groups:
        group.update(own)
    try:
        yield
    finally:
        # Schedulers, which may set them too, and checkpoints read the user's values.
        for (group, own), old in zip(groups, before, strict=True):
            group.update({name: old[name] for name, value in own.items() if group[name] is value})


class LocalState:
    """State of an optimizer for the parameters of a block. This base class does not change it.

    A synchronisation calls the methods in this order, on every rank: :meth:`note`, :meth:`send`,
    :meth:`advance_` for each range of a carried tensor in this rank's shard, :meth:`finish`. If
    updates are sent before they are applied (``overlap``), ``note`` is called again
    before ``advance_``, and :meth:`merge_` after it for the same range.

    Attributes:
        carried: tensors that are averaged over the groups together with the model.
        keeps_previous: whether :meth:`advance_` needs the values of ``carried`` after the last
            synchronisation.

    """

    carried: Sequence[Tensor] = ()
    keeps_previous: bool = False

    def note(self) -> None:
        """Record the optimizer's state."""

    def send(self, averaging: Averaging, *, exchanged: bool, kept: float = 1.0) -> None:
        """Prepare before the model of the last :meth:`note` is sent.

        May start collectives of tier ``across``.

        Args:
            averaging: how models and states are averaged.
            exchanged: whether the carried tensors are averaged at this synchronisation.
            kept: share of the steps since the last synchronisation that the models contain. A
                merge may give up a part of them.

        """

    def wait(self) -> None:
        """Wait for what :meth:`send` has started, and change nothing."""

    def advance_(self, tensor: Tensor, mean: Tensor, previous: Tensor | None) -> None:
        """Turn means into the state at the start of the next block, in place.

        Args:
            tensor: one of ``carried``.
            mean: range of its mean, flat. Overwritten.
            previous: the same range after the last synchronisation, if ``keeps_previous``.

        """

    def merge_(self, tensor: Tensor, values: Tensor, sent: Tensor, start: Tensor) -> None:
        """Merge a carried tensor with that of the next block, in place.

        Args:
            tensor: one of ``carried``.
            values: range of its current values, flat. Overwritten.
            sent: the same range when it was sent.
            start: the same range after :meth:`advance_`.

        """

    def finish(self, *, exchanged: bool) -> None:
        """Set the remaining state, after the carried tensors have their new values.

        Args:
            exchanged: whether means of the carried tensors have arrived.

        """

    def counts(self) -> dict[Parameter, list[float]]:
        """Counts of each parameter, the same on all ranks of a group."""
        return {}

    def set_counts(self, counts: Mapping[Parameter, list[float]], *, begins: bool = False) -> None:
        """Load :meth:`counts`, perhaps of other parameters.

        Args:
            counts: counts of each parameter.
            begins: whether a block starts with the current state of the optimizer. Otherwise the
                block of the counts goes on.

        """


class ResetMomentum(LocalState):
    """Resets the momentum of the local SGD at the start of each block (bmuf eq. 8)."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters

    def finish(self, *, exchanged: bool) -> None:
        """Set the momentum of the parameters to zero, in place."""
        # Other optimizers, such as Adam, have no such buffer and keep their state.
        for parameter in self._parameters:
            momentum = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                momentum.zero_()  # without a buffer, SGD would not dampen the next step


class AveragedMomentum(LocalState):
    """Averages the momentum of the local SGD with the models.

    A parameter without a gradient on this rank has no momentum yet, but may have one on another
    rank, so its momentum is created as zeros.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        # Parameter groups without momentum have no buffer to average.
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
        # RMSprop creates its state at the first gradient only if there is none at all.
        state["step"] = torch.zeros(())
        for name in ("square_avg", *(["grad_avg"] if group["centered"] else [])):
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    momentum: Tensor = state["momentum_buffer"]
    return momentum
