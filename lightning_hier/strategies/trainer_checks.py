"""Checks of module and Trainer before training. Each raises an error on this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
)
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Embedding, EmbeddingBag, Module

from lightning_hier.comm.agreement import raise_everywhere, require_same


def check_on_all_ranks(trainer: pl.Trainer, check: Callable[[pl.Trainer], None]) -> None:
    """Check module and Trainer before training. A collective of the world.

    Args:
        trainer: Trainer that is about to fit.
        check: further checks of the strategy.

    Raises:
        ValueError: on every rank, if a check fails on any, or if settings differ between ranks.

    """
    device = trainer.strategy.root_device
    with raise_everywhere(device):
        check_module(trainer.lightning_module)
        check_trainer(trainer)
        check(trainer)
    # Settings with which ranks would make other numbers of steps, or other updates.
    require_same(
        {
            "precision": str(trainer.precision),
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "gradient_clip_val": trainer.gradient_clip_val,
            "torch": torch.__version__,
            "lightning": lightning.__version__,
        },
        device,
    )
    warn_of_coupling(trainer)


def check_module(module: Module) -> None:
    """Raise ValueError for an unsupported model."""
    sparse = [
        name
        for name, child in module.named_modules()
        if isinstance(child, (Embedding, EmbeddingBag)) and child.sparse
    ]
    if sparse:
        raise ValueError(
            f"sparse gradients are not supported, but {', '.join(sparse)} has sparse=True: set "
            "sparse=False (GTC sends only a few elements of a dense gradient)"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "the model must have a trainable parameter, got none: set requires_grad=True"
        )


def check_trainer(trainer: pl.Trainer) -> None:
    """Raise ValueError for a setting of the Trainer that does not support several ranks."""
    seconds = trainer._val_check_time_interval  # type: ignore[attr-defined]
    if seconds is not None and trainer.world_size > 1:
        raise ValueError(
            f"val_check_interval of {seconds:g} s can't be combined with "
            "several ranks, which must validate at the same step but have different clocks. Set it "
            "to a number of batches or a fraction of an epoch."
        )
    strategy: Any = trainer.strategy
    one_model = getattr(strategy, "block_sync", strategy) is None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StochasticWeightAveraging):
            raise ValueError(
                f"{type(callback).__name__} steps the optimizer with old gradients of each rank in "
                "an epoch without training steps, so it can't be combined with this strategy. Use "
                "lightning.pytorch.callbacks.WeightAveraging(), which averages with equal weights "
                "too (should_update chooses when), torch.optim.swa_utils.SWALR as the scheduler "
                "and, with BatchNorm, torch.optim.swa_utils.update_bn after training."
            )
        if isinstance(callback, ModelPruning) and not one_model:
            raise ValueError(
                f"{type(callback).__name__} prunes by the weights in the module, which between two "
                "synchronisations are those of one group: groups would prune other weights. Prune "
                "in setup() or after fit by torch.nn.utils.prune, or train with 'gtc'."
            )


def check_served_trainer(trainer: pl.Trainer) -> None:
    """Raise ValueError for a setting that does not support parameter servers."""
    if trainer._accelerator_connector._layer_sync is not None:
        raise ValueError(
            "sync_batchnorm=True can't be combined with parameter servers: every batch would wait "
            "for all ranks. Leave it out: statistics are averaged when the model is evaluated."
        )
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    # Tuner.lr_find also uses this callback, but its fit ends with the search.
    if any(
        isinstance(callback, LearningRateFinder) and not callback._early_exit
        for callback in callbacks
    ):
        raise ValueError(
            "LearningRateFinder can't be combined with parameter servers, which would continue "
            "from the model that the search has changed. Leave it out, and call "
            "Tuner(trainer).lr_find(model, data) before fit."
        )


def warn_of_coupling(trainer: pl.Trainer) -> None:
    """Warn about callbacks that make all ranks wait for each other at every batch."""
    # Not errors: results are right, but every step costs a round trip between hosts.
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer) and callback._interval == "step":
            rank_zero_warn(
                "Trainer(max_time=...) compares the time of all ranks at every step, so groups "
                "wait for each other within blocks. Use callbacks=[Timer(..., interval='epoch')]."
            )
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            rank_zero_warn(
                "ModelCheckpoint(train_time_interval=...) compares the time of all ranks at every "
                "step, so groups wait for each other within blocks. Use every_n_train_steps."
            )
