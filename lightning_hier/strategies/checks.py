"""Checks of module and Trainer before training, on every rank."""

from __future__ import annotations

from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning, Timer
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Embedding, EmbeddingBag, Module

from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.tiers import WorkerLayout
from lightning_hier.strategies.data_checks import join_trainer_problem
from lightning_hier.strategies.virtual_workers.checks import virtual_problem


def layout_problem(group_size: int, workers: int, block_sync: BlockSync | None) -> str | None:
    """What about groups that divide the workers can't be trained, or None."""
    groups = workers // group_size
    if block_sync is not None:
        try:
            block_sync.filter_for(groups)
        except ValueError as error:
            return str(error)
    elif groups > 1:
        return (
            f"block_sync=None needs one group of all ranks, but groups of {group_size} make "
            f"{groups} groups that would never meet: pass block_sync=BMUF(...) or "
            "ModelAveraging(...), or group_size='world'"
        )
    return None


def check_run(trainer: pl.Trainer, problem: str | None = None) -> None:
    """Check model and Trainer. A collective of the world: every rank must call it.

    Args:
        trainer: about to fit.
        problem: of this rank, found before.

    Raises:
        ValueError: on every rank, if any rank finds a problem.

    """
    device = trainer.strategy.root_device
    own = module_problem(trainer.lightning_module) or trainer_problem(trainer) or problem
    raise_everywhere(own, device)
    require_same(trainer_settings(trainer), device)
    warn_of_coupling(trainer)


def check_fit(
    trainer: pl.Trainer, worker_counts: WorkerLayout, *, join: bool, warms_up: bool
) -> None:
    """Check model and Trainer for a synchronous strategy. A collective of the world.

    Args:
        trainer: about to fit.
        worker_counts: how the workers of a group are divided among ranks.
        join: whether ranks that have run out of batches join the others.
        warms_up: whether there is a warm-up.

    Raises:
        ValueError: on every rank, if any rank finds a problem.

    """
    problem = join_trainer_problem(trainer) if join else None
    if worker_counts.workers_per_rank > 1:
        problem = virtual_problem(trainer, worker_counts, warms_up=warms_up)
    check_run(trainer, problem)


def module_problem(module: Module) -> str | None:
    """What about the model can't be trained, or None."""
    sparse = [
        name
        for name, child in module.named_modules()
        if isinstance(child, (Embedding, EmbeddingBag)) and child.sparse
    ]
    if sparse:
        return (
            f"sparse gradients are not supported, and {', '.join(sparse)} has sparse=True: set "
            "sparse=False (GTC sends few elements of a dense gradient anyway)"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return "the model has no trainable parameter: nothing to synchronise"
    return None


def trainer_problem(trainer: pl.Trainer) -> str | None:
    """What about the Trainer can't be combined with several ranks, or None."""
    seconds = trainer._val_check_time_interval  # type: ignore[attr-defined]
    if seconds is not None and trainer.world_size > 1:
        return (
            f"val_check_interval of {seconds:g} s can't be combined with "
            "several ranks: each would validate when its own clock says so, and they must validate "
            "at the same step. Give it as a number of batches or a part of an epoch."
        )
    # One model that all ranks train at every step is what a hook may write into at any time.
    one_model = getattr(trainer.strategy, "block_sync", trainer) is None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        resets = isinstance(callback, ModelPruning) and callback._use_lottery_ticket_hypothesis
        if resets and not one_model:
            return (
                f"{type(callback).__name__} can't set weights back at the end of an epoch "
                "(use_lottery_ticket_hypothesis, which is on by default): the module holds the "
                "global model then, and training goes on from another one. Pass "
                "use_lottery_ticket_hypothesis=False."
            )
    return None


def warn_of_coupling(trainer: pl.Trainer) -> None:
    """Warn of callbacks that make all ranks wait for each other at every batch."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer) and callback._interval == "step":
            rank_zero_warn(
                "Trainer(max_time=...) asks all ranks at every step whether time is up, so groups "
                "wait for each other within blocks. Use callbacks=[Timer(..., interval='epoch')]."
            )
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            rank_zero_warn(
                "ModelCheckpoint(train_time_interval=...) asks all ranks at every step whether to "
                "save, so groups wait for each other within blocks. Use every_n_train_steps."
            )


def trainer_settings(trainer: pl.Trainer) -> dict[str, Any]:
    """Settings of the Trainer that must not differ between ranks."""
    return {
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "gradient_clip_val": trainer.gradient_clip_val,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }
