"""LoRA adapters of peft in GPT-2 of transformers: most weights are frozen."""

from __future__ import annotations

from torch.utils.data import DataLoader

from examples.recipes.lora import LoRA, texts
from tests.foreign.task import Task


def task() -> Task:
    """Return a model with adapters, and texts of another language than its own."""
    return Task(
        module=LoRA(),
        train=DataLoader(texts(960, 1, factor=11), batch_size=16, shuffle=True),
        val=DataLoader(texts(128, 2, factor=11), batch_size=32),
        metric="val_loss",
        load=LoRA.load_from_checkpoint,
    )
