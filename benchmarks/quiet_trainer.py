"""Trainer for benchmarks: one epoch, without output."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def quiet_trainer(**settings: Any) -> pl.Trainer:
    """Create a Trainer for the CPU without logs, checkpoints, progress bar and sampler."""
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
