"""GTC as it is in the middle of a run, without the hundreds of steps that lead there."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from lightning_hier import HierarchicalStrategy


class AgedResiduals(pl.Callback):
    """Fills the residuals after the first step as they are after many, once thresholds are there.

    A residual is a random walk between -T and T that goes back by T where it leaves: in the long
    run it lies at x with a density that falls in a straight line from 0 to T on both sides. Without
    this nothing would be sent for about 1 / density steps, and every figure would flatter GTC.
    """

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        if trainer.global_step != 1 or not isinstance(trainer.strategy, HierarchicalStrategy):
            return
        generator = torch.Generator().manual_seed(1 + trainer.global_rank)
        for memory in trainer.strategy._fit_session.worker.memory.tensors.values():
            if memory.threshold is not None:
                residual = memory.residual
                pair = torch.rand(2, *residual.shape, generator=generator)
                residual.copy_((pair[0] + pair[1] - 1.0).mul_(memory.threshold))
