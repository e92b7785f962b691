"""Servers know a parameter by its place in its optimizer, which must be the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_where_different

# A parameter: index of its optimizer, of its group there, and its name in the module.
Place = tuple[int, int, str]


def require_same_order(
    module: Module, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Check that optimizers list the same parameters in the same order on all ranks.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming the first place that differs.

    """
    own = _places(module, optimizers)
    rows = gather_where_different(own, device, place="the comparison of optimizers") or ()
    problem = order_problem([[(one, group, name) for one, group, name in row] for row in rows])
    if problem is not None:
        raise ValueError(problem)


def order_problem(rows: Sequence[Sequence[Place]]) -> str | None:
    """Say where the ranks' optimizers differ; None if they do not.

    Args:
        rows: for each rank, all parameters of its optimizers in their order.

    """
    for rank, row in enumerate(rows):
        for number, (first, own) in enumerate(zip_longest(rows[0], row)):
            if own != first:
                return (
                    "optimizers must list the same parameters in the same order on all ranks, "
                    "since servers know a parameter by its place. "
                    f"At place {number} is {_said(first)} on rank 0, and {_said(own)} on rank "
                    f"{rank}. A set has another order in every process: take "
                    "`[p for p in self.parameters() if p in chosen]`, the order of the module"
                )
    return None


def _places(module: Module, optimizers: Sequence[Optimizer]) -> list[Place]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [
        (index, number, names.get(id(parameter), f"a tensor of shape {tuple(parameter.shape)}"))
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    ]


def _said(place: Place | None) -> str:
    if place is None:
        return "nothing more"
    optimizer, group, name = place
    return f"{name} (optimizer {optimizer}, group {group})"
