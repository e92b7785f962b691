"""GPT-2 of transformers in a module of one's own: tied weights, dropout, AdamW, clipping."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

from tests.foreign.task import Task

STEPS = 80


class LanguageModel(pl.LightningModule):
    """Trains by the loss that the model computes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(
            GPT2Config(vocab_size=32, n_positions=32, n_embd=48, n_layer=2, n_head=4)
        )

    def loss(self, batch: list[Tensor]) -> Tensor:
        return self.model(input_ids=batch[0], labels=batch[0]).loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)
        schedule = get_cosine_schedule_with_warmup(optimizer, STEPS // 10, STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def texts(number: int, seed: int) -> TensorDataset:
    """Return texts of a language in which the next letter depends on the last one."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(32, (number, 32), generator=generator)
    noise = torch.rand(number, 32, generator=generator) < 0.1
    for i in range(1, 32):
        following = (letters[:, i - 1] * 5 + 3) % 32
        letters[:, i] = torch.where(noise[:, i], letters[:, i], following)
    return TensorDataset(letters)


def task() -> Task:
    """Return a model of 2 layers, and texts."""
    return Task(
        module=LanguageModel(),
        train=DataLoader(texts(960, 1), batch_size=16, shuffle=True),
        val=DataLoader(texts(128, 2), batch_size=32),
        metric="val_loss",
        load=LanguageModel.load_from_checkpoint,
        steps=STEPS,
        trainer=partial(pl.Trainer, gradient_clip_val=1.0),
    )
