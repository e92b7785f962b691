"""Creates Trainers for tests of the examples."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def quiet_trainer(strategy: Any = "auto", **settings: Any) -> pl.Trainer:
    """Create a Trainer on the CPU, without files or output."""
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "strategy": strategy,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(**{**given, **settings})
