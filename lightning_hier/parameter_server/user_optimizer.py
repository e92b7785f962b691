"""The user's optimizer as servers need it: its hyperparameters, and its trainable parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

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


class ServedParameterCheck:
    """Checks that servers hold all parameters that optimizers step.

    Servers hold the parameters that are trainable when training starts.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._served: Collection[Parameter] = {
            p for optimizer in optimizers for p in trainable(optimizer)
        }
        self._groups = [len(optimizer.param_groups) for optimizer in optimizers]

    def check(self, index: int, optimizer: Optimizer) -> None:
        """Check an optimizer before its step.

        Raises:
            RuntimeError: a parameter that no server holds has a gradient, or a parameter group has
                been added to the optimizer.

        """
        what = None
        if len(optimizer.param_groups) != self._groups[index]:
            what = f"parameter group {self._groups[index]} of {type(optimizer).__name__}"
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.requires_grad and p not in self._served:
                    what = f"a parameter of shape {tuple(p.shape)}"
        if what is None:
            return
        raise RuntimeError(
            f"{what} was frozen or in no optimizer when training started, so no server has it: "
            "parameters can't be unfrozen under parameter servers. Have them trainable from the "
            "start, in a parameter group whose learning rate is 0 until then; or end this fit, and "
            "begin another one with them."
        )
