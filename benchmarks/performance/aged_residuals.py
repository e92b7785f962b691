"""Residuals of GTC as after many steps, without running these steps."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from lightning_hier import HierarchicalStrategy


class AgedResiduals(pl.Callback):
    """Replace the residuals after the first step by samples of their stationary distribution.

    A residual is a random walk between -T and T, where T is the threshold. A step that leaves this
    interval moves it back by T. Its stationary distribution is triangular: the density falls
    linearly from its maximum at 0 to 0 at -T and T. With zero residuals, ranks would send nothing
    for about 1 / density steps, and GTC would seem cheaper than it is.
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
