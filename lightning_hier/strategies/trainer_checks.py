"""Checks of module and Trainer before training. Each raises an error on this rank.

What only a step shows gets its text in :func:`explain`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.strategies import StrategyRegistry
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Module

from lightning_hier.callbacks.packages import both
from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.loop.wrapping import DENSE, SPARSE, check_dense, check_shapes


def check_on_all_ranks(trainer: pl.Trainer, check: Callable[[pl.Trainer], None]) -> None:
    """Check module and Trainer before training. A collective of the world.

    Args:
        trainer: Trainer that is about to fit.
        check: further checks of the strategy.

    Raises:
        ValueError: on every rank, if a check fails on any, or if settings differ between ranks.

    """
    strategy: Any = trainer.strategy
    device = strategy.root_device
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
            strategy.package: sys.modules[strategy.package].__version__,
        },
        device,
    )
    warn_of_coupling(trainer)


# Errors of torch about a sparse gradient: of DDP's buckets, and of copies to servers.
_OF_SPARSE = re.compile("Cannot access storage of SparseTensorImpl|copy_.. between dense and spa")


def check_module(module: Module) -> None:
    """Raise ValueError for an unsupported model."""
    check_shapes(module)
    check_dense(module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "the model must have a trainable parameter, got none: set requires_grad=True"
        )


def explain(error: BaseException, module: Module, strategy: str) -> None:
    """Replace a text of torch that would not help, or that names another strategy, in place.

    Args:
        error: error of a step.
        module: the module.
        strategy: name of the strategy.

    """
    text = str(error.args[0]) if error.args else ""
    if "Expected to have finished reduction in the prior iteration" in text:
        unused = f"strategy='{strategy}_find_unused_parameters_true', or "
        error.args = (
            f"{_unused(text, module)} got no gradient in a step, but all ranks that average "
            "gradients wait for those of all parameters. If a step may leave parameters out, pass "
            f"{unused if strategy in StrategyRegistry else ''}find_unused_parameters=True to the "
            "strategy; if they are never used, freeze them (requires_grad=False).",
        )
    elif _OF_SPARSE.search(text):
        error.args = (f"{SPARSE}, but a parameter has one: {DENSE}",)


def _unused(text: str, module: Module) -> str:
    """Names of the parameters whose numbers DDP's error lists."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    listed = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
    numbers = [int(number) for number in listed[1].split()] if listed else []
    return ", ".join(names[n] for n in numbers if n < len(names)) or "parameters"


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
        if isinstance(callback, both(StochasticWeightAveraging)):
            raise ValueError(
                f"{type(callback).__name__} steps the optimizer with old gradients of each rank in "
                "an epoch without training steps, so it can't be combined with this strategy. Use "
                "lightning.pytorch.callbacks.WeightAveraging(), which averages with equal weights "
                "too (should_update chooses when), torch.optim.swa_utils.SWALR as the scheduler "
                "and, with BatchNorm, torch.optim.swa_utils.update_bn after training."
            )
        if isinstance(callback, both(ModelPruning)) and not one_model:
            raise ValueError(
                f"{type(callback).__name__} prunes by the weights in the module, which between two "
                "synchronisations are those of one group: groups would prune other weights. Prune "
                "in setup() or after fit by torch.nn.utils.prune, or train with 'gtc'."
            )


def check_served_trainer(trainer: pl.Trainer) -> None:
    """Raise ValueError for a setting that does not support parameter servers."""
    strategy: Any = trainer.strategy
    if strategy._layer_sync is not None:
        raise ValueError(
            "sync_batchnorm=True can't be combined with parameter servers: every batch would wait "
            "for all ranks. Leave it out: statistics are averaged when the model is evaluated."
        )
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    # Tuner.lr_find also uses this callback, but its fit ends with the search.
    if any(
        isinstance(callback, both(LearningRateFinder)) and not callback._early_exit
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
        if isinstance(callback, both(Timer)) and callback._interval == "step":
            rank_zero_warn(
                "Trainer(max_time=...) compares the time of all ranks at every step, so groups "
                "wait for each other within blocks. Use callbacks=[Timer(..., interval='epoch')]."
            )
        if (
            isinstance(callback, both(ModelCheckpoint))
            and callback._train_time_interval is not None
        ):
            rank_zero_warn(
                "ModelCheckpoint(train_time_interval=...) compares the time of all ranks at every "
                "step, so groups wait for each other within blocks. Use every_n_train_steps."
            )
