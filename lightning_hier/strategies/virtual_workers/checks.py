"""What can't be combined with several workers on a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_sync import BlockSync

_WAY_OUT = "leave that out, or start a rank for each worker"


class Settings(Protocol):
    """What of a strategy is looked at."""

    virtual_workers: int
    group_size: Any
    warmup_steps: int
    on_nonfinite: Any
    uneven_batches: Any
    block_sync: BlockSync | None


def check_combination(strategy: Settings) -> None:
    """Check the settings of a strategy.

    Raises:
        ValueError: some of them can't be combined with several workers on a rank.

    """
    if strategy.virtual_workers == 1:
        return
    if strategy.group_size != 1:
        raise ValueError(
            f"virtual_workers={strategy.virtual_workers} needs groups of one worker, got "
            f"group_size={strategy.group_size!r}: pass group_size=1 with a block_sync, as the "
            "strategies model_averaging, bmuf and bmuf_adam do, or start a rank for each worker"
        )
    found = []
    if strategy.warmup_steps:
        found.append(f"warmup_steps={strategy.warmup_steps}")
    if strategy.on_nonfinite != "error":
        found.append(f"on_nonfinite={strategy.on_nonfinite!r}")
    if strategy.uneven_batches != "error":
        found.append(f"uneven_batches={strategy.uneven_batches!r}")
    if strategy.block_sync is not None and strategy.block_sync.overlap:
        found.append("overlap=True")
    if found:
        raise ValueError(
            f"virtual_workers={strategy.virtual_workers} can't be combined with "
            f"{', '.join(found)}: {_WAY_OUT}"
        )


def virtual_problem(trainer: pl.Trainer) -> str | None:
    """What about Trainer and module can't be trained with several workers on a rank, or None."""
    found = []
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        found.append(f"precision={str(trainer.precision)!r} (use 'bf16-mixed')")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, (WeightAveraging, StochasticWeightAveraging)):
            found.append(type(callback).__name__)
    hook = "on_before_batch_transfer"
    datamodule = getattr(trainer, "datamodule", None)
    if is_overridden(hook, trainer.lightning_module, pl.LightningModule) or (
        datamodule is not None and is_overridden(hook, datamodule, pl.LightningDataModule)
    ):
        found.append(f"{hook} (use on_after_batch_transfer)")
    if not found:
        return None
    return f"virtual_workers above 1 can't be combined with {', '.join(found)}: {_WAY_OUT}"


def check_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Check how many optimizers there are.

    With several, the block of one may end while the workers that have had their turn have stepped
    the others too, with a model that was not synchronised in between.

    Raises:
        ValueError: several.

    """
    if len(optimizers) > 1:
        raise ValueError(
            f"virtual_workers above 1 can't be combined with {len(optimizers)} optimizers: start a "
            "rank for each worker"
        )
