"""Checks and advice about the optimizers of the module, before training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_where_different
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.parameter_server.updater import objection

Place = tuple[int, int, str]
"""A parameter: index of its optimizer, of its group there, and its name in the module."""


def check_averaged_optimizers(
    optimizers: Sequence[Optimizer], block_sync: BlockSync | None, virtual_workers: int
) -> None:
    """Check the optimizers of a synchronous strategy.

    Raises:
        ValueError: they can't be combined with the settings.

    """
    if virtual_workers > 1 and len(optimizers) > 1:
        # The block of one could end when the first workers have stepped the others too.
        raise ValueError(
            f"virtual_workers above 1 can't be combined with {len(optimizers)} optimizers: start a "
            "rank for each worker"
        )
    if block_sync is None:
        return
    for optimizer in optimizers:
        if problem := block_sync.objection(optimizer):
            raise ValueError(problem)


def check_served_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Check optimizers that become the Updaters of parameter servers.

    Raises:
        ValueError: they can't, or two of them share a parameter.

    """
    seen: set[int] = set()
    for optimizer in optimizers:
        if problem := objection(optimizer):
            raise ValueError(problem)
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if own & seen:
            raise ValueError(
                "two optimizers share a parameter, which can't be: each parameter lies on one "
                "server, with one optimizer. Divide the parameters among the optimizers."
            )
        seen |= own


def require_same_order(
    module: Module, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Check that optimizers list the same parameters in the same order on all ranks.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming the first place that differs.

    """
    names = {own: name for name, own in module.named_parameters()}
    places = [
        (index, number, names.get(own, f"a tensor of shape {tuple(own.shape)}"))
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for own in group["params"]
    ]
    rows = gather_where_different(places, device, place="the comparison of optimizers") or ()
    check_order([[(one, group, name) for one, group, name in row] for row in rows])


def check_order(rows: Sequence[Sequence[Place]]) -> None:
    """Check the order of the parameters of all ranks.

    Args:
        rows: for each rank, all parameters of its optimizers in their order.

    Raises:
        ValueError: names the first place at which the optimizers of two ranks differ.

    """
    for rank, row in enumerate(rows):
        for number, (first, own) in enumerate(zip_longest(rows[0], row)):
            if own != first:
                raise ValueError(
                    "optimizers must list the same parameters in the same order on all ranks, "
                    "since servers identify a parameter by its place. "
                    f"At place {number} is {_named(first)} on rank 0, and {_named(own)} on rank "
                    f"{rank}. A set has another order in every process: take "
                    "`[p for p in self.parameters() if p in chosen]`, the order of the module"
                )


def _named(place: Place | None) -> str:
    if place is None:
        return "nothing more"
    optimizer, group, name = place
    return f"{name} (optimizer {optimizer}, group {group})"


def log_advice(
    optimizers: Sequence[Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> None:
    """Warn once of optimizers whose settings work, but not well; log what ``"auto"`` has chosen.

    Args:
        optimizers: of the module.
        gradient_sync: inside groups; None where a group has one worker, which sends nothing.
        block_sync: across groups.
        num_models: groups.

    """
    warnings: list[str | None] = []
    choices: list[str | None] = []
    for optimizer in optimizers:
        if gradient_sync is not None:
            warnings.append(gradient_sync.advice(optimizer))
        if block_sync is not None:
            choices.append(block_sync.chosen(optimizer, num_models))
            if num_models > 1:
                warnings.append(block_sync.advice(optimizer, num_models))
    # Optimizers of one kind may get the same advice or, as by their betas, different advice.
    for warning in filter(None, dict.fromkeys(warnings)):
        rank_zero_warn(warning)
    for choice in filter(None, dict.fromkeys(choices)):
        rank_zero_info(choice)
