"""What parameter groups of an optimizer hold beside parameters, as it travels with pushes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

# Hyperparameters of every parameter group, by name; what JSON can say.
Hyperparameters = Sequence[Mapping[str, Any]]

# What a group of Optimizer.param_groups holds besides hyperparameters.
NOT_HYPERPARAMETERS = ("params", "param_names")


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Everything in the parameter groups but the parameters, as JSON can say it.

    Tensors of one element become numbers, tuples become lists. What JSON can't say is left out:
    no scheduler moves it, and the Updater has a copy from the start.
    """
    told = []
    for group in optimizer.param_groups:
        plain = {name: _plain(value) for name, value in group.items()}
        left_out = [name for name, value in plain.items() if value is NotImplemented]
        for name in (*NOT_HYPERPARAMETERS, *left_out):
            plain.pop(name, None)
        told.append(plain)
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return NotImplemented if any(item is NotImplemented for item in items) else items
    return value if value is None or isinstance(value, (bool, int, float, str)) else NotImplemented
