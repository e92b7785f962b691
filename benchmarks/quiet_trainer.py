"""A Trainer that goes once through its data and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def quiet_trainer(**settings: Any) -> pl.Trainer:
    """One epoch on the CPU without logs, checkpoints, bars and sampler; ``settings`` add to it."""
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
