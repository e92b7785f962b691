"""The user's optimizer as servers need it: hyperparameters, trainable parameters, objections."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer, SparseAdam

from lightning_hier.comm.blocks.trained import optimizer_parameters

# Hyperparameters of every parameter group, by name; values that JSON can represent.
Hyperparameters = Sequence[Mapping[str, Any]]

# Entries of Optimizer.param_groups that are not hyperparameters.
NOT_HYPERPARAMETERS = ("params", "param_names")


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The hyperparameters of every parameter group, for JSON.

    Tensors of one element become numbers, and tuples become lists. Values that JSON cannot
    represent are left out: no scheduler changes them, and the Updater has copied them at the start.
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        groups.append({})
        for name, value in group.items():
            plain = NotImplemented if name in NOT_HYPERPARAMETERS else _plain(value)
            if plain is not NotImplemented:
                groups[-1][name] = plain
    return groups


# NotImplemented stands for values that JSON cannot represent, because None is the value of options
# such as foreach.
def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return NotImplemented if any(item is NotImplemented for item in items) else items
    return NotImplemented


def trainable(optimizer: Optimizer) -> list[Parameter]:
    """The trainable parameters of an optimizer, in its order."""
    return [parameter for parameter in optimizer_parameters(optimizer) if parameter.requires_grad]


def objection(optimizer: Optimizer) -> str | None:
    """Why an optimizer cannot be a server's Updater; None if it can."""
    name = type(optimizer).__name__
    if isinstance(optimizer, LBFGS):
        return f"{name} calls its closure several times a step; a server has gradients only"
    if isinstance(optimizer, SparseAdam):
        return f"{name} wants sparse gradients, which are not sent"
    if _needs_closure(optimizer):
        return f"{name}.step() needs a closure; a server has gradients only"
    for index, group in enumerate(optimizer.param_groups):
        if "lr" not in group:
            return f"parameter group {index} of {name} has no learning rate (lr) to scale"
        for option in ("capturable", "differentiable"):
            if group.get(option):
                return f"parameter group {index} of {name} has {option}=True: leave it out"
    return None


def _needs_closure(optimizer: Optimizer) -> bool:
    # Of the class, because a learning rate scheduler replaces the method of the object.
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(
        argument.default is argument.empty
        for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    )
