"""Checks of settings that do not support virtual workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from lightning_hier.comm.gradients.gradient_sync import CommHook
from lightning_hier.comm.tiers import WorkerLayout
from lightning_hier.strategies.virtual_workers.loaders import WorkerLoaders

if TYPE_CHECKING:
    from lightning_hier.strategies.hierarchical import HierarchicalStrategy

_WAY_OUT = "leave this out, or start one rank per worker"


def check_combination(strategy: HierarchicalStrategy, layout: WorkerLayout) -> None:
    """Check the settings of a strategy with several workers on a rank.

    Args:
        strategy: has the settings.
        layout: how the workers of a group are divided among ranks.

    Raises:
        ValueError: some of them cannot be combined with several workers on a rank.

    """
    refused = []
    if layout.workers_per_rank > 1:
        if strategy.block_sync is not None and strategy.block_sync.weighting != "equal":
            refused.append(f"weighting={strategy.block_sync.weighting!r}")
    if layout.per_model > 1:
        if isinstance(strategy.gradient_sync, CommHook):
            refused.append("gradient_sync=CommHook(...), which needs DDP")
        if not strategy._ddp_kwargs.get("broadcast_buffers", True):
            refused.append("broadcast_buffers=False")
    if refused:
        raise ValueError(
            f"virtual_workers={layout.workers_per_rank} with group_size={layout.group_size} can't "
            f"be combined with {', '.join(refused)}: {_WAY_OUT}"
        )


def check_virtual_trainer(trainer: pl.Trainer, layout: WorkerLayout, warmup_steps: int) -> None:
    """Check the Trainer and the module for several workers on a rank.

    Args:
        trainer: Trainer that is about to fit.
        layout: how the workers of a group are divided among ranks.
        warmup_steps: number of first steps, in which all workers of a rank share a model.

    Raises:
        ValueError: they do not support several workers on a rank.

    """
    refused = []
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        refused.append(f"precision={str(trainer.precision)!r} (use 'bf16-mixed')")
    if layout.models_per_rank > 1:
        callbacks: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # They keep averages, or optimizer groups, of the single model in the module.
        of_one = (WeightAveraging, StochasticWeightAveraging, BaseFinetuning)
        refused += [
            type(callback).__name__ for callback in callbacks if isinstance(callback, of_one)
        ]
    # A block could end when the first workers have made several steps, and the others none.
    if not trainer.lightning_module.automatic_optimization:
        refused.append("manual optimization")
    if is_param_in_hook_signature(
        trainer.lightning_module.training_step, "dataloader_iter", explicit=True
    ):
        refused.append("training_step(dataloader_iter) (use training_step(batch, batch_idx))")
    # Lightning would call this hook once, with the batches of all workers of the rank.
    hook = "on_before_batch_transfer"
    datamodule = getattr(trainer, "datamodule", None)
    if is_overridden(hook, trainer.lightning_module, pl.LightningModule) or (
        datamodule is not None and is_overridden(hook, datamodule, pl.LightningDataModule)
    ):
        refused.append(f"{hook} (use on_after_batch_transfer)")
    # In the warm-up, all workers of a rank share one model, whatever the groups are.
    if (layout.per_model > 1 or warmup_steps > 0) and has_sync_batchnorm(trainer):
        refused.append("sync_batchnorm=True in groups of several workers or a warm-up")
    if refused:
        raise ValueError(
            f"virtual_workers above 1 can't be combined with {', '.join(refused)}: {_WAY_OUT}"
        )


def has_sync_batchnorm(trainer: pl.Trainer) -> bool:
    """Whether batch statistics are those of several ranks, so that workers cannot share a model."""
    return trainer._accelerator_connector._layer_sync is not None


def check_loaders(trainer: pl.Trainer) -> None:
    """Check the training data of a rank with several workers after the data loaders are created.

    Raises:
        ValueError: they cannot be divided among the workers.

    """
    data = trainer.train_dataloader
    # Lightning passes each loader to process_dataloader, and keeps several in one collection.
    if isinstance(data, WorkerLoaders):
        return
    number = len(CombinedLoader(data).flattened)
    together = "combine their datasets, or start one rank per worker"
    raise ValueError(
        "virtual_workers above 1 needs one DataLoader of training data, got a "
        f"{type(data).__name__} of {number}: {together if number > 1 else 'pass it directly'}"
    )
