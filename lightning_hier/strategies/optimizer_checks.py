"""Checks and advice about the optimizers of the module, before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.strategies.automatic import Synchronisation


def check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Synchronisation,
    communicators: Communicators,
    virtual_workers: int,
) -> None:
    """Check optimizers, warn of unsuitable settings, and log automatic values.

    A collective of the world: every rank must call it.

    Args:
        optimizers: of the module.
        settings: of the run.
        communicators: channels of this rank.
        virtual_workers: of each rank.

    Raises:
        ValueError: on every rank, if optimizers differ or do not suit the settings.

    """
    device, models = communicators.device, communicators.models
    block_sync = settings.block_sync
    raise_everywhere(optimizer_problem(optimizers, block_sync, virtual_workers), device)
    require_same(optimizer_settings(optimizers), device)
    # A group of one worker sends no gradients.
    alone = communicators.world.size * virtual_workers == models
    warn_of_optimizers(optimizers, None if alone else settings.gradient_sync, block_sync, models)
    log_choices(optimizers, block_sync, models)


def optimizer_problem(
    optimizers: Sequence[torch.optim.Optimizer],
    block_sync: BlockSync | None,
    virtual_workers: int,
) -> str | None:
    """Return why the optimizers can't be combined with the settings, or None."""
    if virtual_workers > 1 and len(optimizers) > 1:
        # The block of one could end when the first workers have stepped the others too.
        return (
            f"virtual_workers above 1 can't be combined with {len(optimizers)} optimizers: start a "
            "rank for each worker"
        )
    if block_sync is None:
        return None
    objections = (block_sync.objection(optimizer) for optimizer in optimizers)
    return next((one for one in objections if one is not None), None)


def warn_of_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> None:
    """Warn once of optimizers whose settings work, but not well.

    Args:
        optimizers: of the module.
        gradient_sync: inside groups; None where a group has one worker, which sends nothing.
        block_sync: across groups.
        num_models: groups.

    """
    found: list[str | None] = []
    for optimizer in optimizers:
        if gradient_sync is not None:
            found.append(gradient_sync.advice(optimizer))
        if block_sync is not None and num_models > 1:
            found.append(block_sync.advice(optimizer, num_models))
    # Optimizers of one kind may be advised the same, or, as by their betas, differently.
    for advice in filter(None, dict.fromkeys(found)):
        rank_zero_warn(advice)


def log_choices(
    optimizers: Sequence[torch.optim.Optimizer], block_sync: BlockSync | None, num_models: int
) -> None:
    """Log once what ``"auto"`` has chosen for the optimizers."""
    if block_sync is None:
        return
    for choice in filter(None, {block_sync.chosen(own, num_models) for own in optimizers}):
        rank_zero_info(choice)


def optimizer_settings(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """What must not differ between ranks about the optimizers."""
    return {"optimizers": [type(one).__name__ for one in optimizers]}
