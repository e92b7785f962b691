"""Runs of the language studies: a transformer of 10,056 parameters, one rank for each worker.

``RunStore`` starts this module on every rank, and documents its argument.
"""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.language.data_module import Text
from examples.language.model import LanguageModel
from examples.language.windows import Batch
from examples.quiet import quiet_trainer, silence_lightning
from examples.rank_batches import rank_and_world_size
from examples.run_store import run_job
from examples.studies.language_settings import (
    CLIP,
    CONTEXT,
    MOMENTUM,
    SHAPE,
    VOCABULARY,
    WEIGHT_DECAY,
    Result,
    Settings,
)
from lightning_hier import BMUF, QSR, BMUFAdam, DiLoCo, HierarchicalStrategy, ModelAveraging

_VALID_WINDOWS = 4096
_CURVE_POINTS = 20


class _Windows(Dataset[Batch]):
    """Windows at random positions of Python's standard library, by the step of a worker.

    Workers of a seed use the same windows for any number of workers.
    """

    def __init__(self, settings: Settings, worker: int) -> None:
        self._stream = _stream("train")
        shape = (settings.steps, settings.workers, settings.batch_windows)
        generator = np.random.default_rng([settings.seed])
        starts = generator.integers(0, len(self._stream) - CONTEXT - 1, size=np.prod(shape))
        self._starts = torch.from_numpy(starts.reshape(shape)[:, worker])

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, step: int) -> Batch:
        return _batch(self._stream, self._starts[step])


class _Data(pl.LightningDataModule):
    is_fitting = False  # disables the model's check of its vocabulary, which needs a corpus

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank."""
        rank, _ = rank_and_world_size(self.trainer)
        return DataLoader(_Windows(self._settings, rank), batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the share of this rank of the valid split's windows, as one batch."""
        rank, ranks = rank_and_world_size(self.trainer)
        stream = _stream("valid")
        starts = torch.linspace(0, len(stream) - CONTEXT - 2, _VALID_WINDOWS).long()
        batches: Any = [_batch(stream, starts[rank::ranks])]
        return DataLoader(batches, batch_size=None)


def _batch(stream: Tensor, starts: Tensor) -> Batch:
    tokens = stream[starts.unsqueeze(-1) + torch.arange(CONTEXT + 1)]
    return Batch(tokens[..., :-1], tokens[..., 1:], None)


def _stream(split: str) -> Tensor:
    text = Text(context=CONTEXT).corpus.splits[split]
    return torch.from_numpy(text.read(0, len(text))).clamp_(max=VOCABULARY - 1)


class _Model(LanguageModel):
    """The model of the language example, with SGD as an alternative to AdamW."""

    sgd_rate: float | None = None

    def configure_optimizers(self) -> Any:
        if self.sgd_rate is None:
            return super().configure_optimizers()
        sgd = torch.optim.SGD(self.parameters(), lr=self.sgd_rate, momentum=MOMENTUM)
        steps = int(self.trainer.max_steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            sgd, lambda step: self.schedule.factor(step, steps)
        )
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class _Curve(pl.Callback):
    """Records the step and the loss of the global model at every validation."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.points.append((trainer.global_step, _bounded_loss(trainer)))


def run(settings: Settings) -> Result:
    """Train, and compute the loss of the global model. Every rank must call it."""
    torch.set_num_threads(1)
    # Second moments of rare tokens become subnormal, which is slow.
    torch.set_flush_denormal(True)
    torch.manual_seed(settings.seed)
    model = _Model(
        size="tiny",
        layers=SHAPE.layers,
        heads=SHAPE.heads,
        width=SHAPE.width,
        vocabulary=VOCABULARY,
        context=CONTEXT,
        learning_rate=settings.learning_rate,
        beta1=settings.beta1,
        beta2=settings.beta2,
        weight_decay=WEIGHT_DECAY,
        schedule=settings.schedule,
        max_steps=settings.steps,
    )
    model.sgd_rate = settings.learning_rate if settings.optimizer == "sgd" else None
    curve = _Curve()
    trainer = quiet_trainer(
        devices=settings.ranks,
        strategy=_strategy(settings),
        max_steps=settings.steps,
        gradient_clip_val=CLIP,
        check_val_every_n_epoch=None,
        val_check_interval=max(1, settings.steps // _CURVE_POINTS),
        callbacks=[curve],
    )
    data = _Data(settings)
    trainer.fit(model, data)
    if curve.points[-1][0] < settings.steps:
        trainer.validate(model, data, verbose=False)
    return Result(
        settings=settings.portable_settings(), loss=curve.points[-1][1], curve=curve.points
    )


def _bounded_loss(trainer: pl.Trainer) -> float:
    """Return the loss, or that of a uniform distribution if the loss is larger or not finite."""
    loss, uniform_loss = float(trainer.callback_metrics["valid/loss"]), math.log(VOCABULARY)
    return min(loss, uniform_loss) if math.isfinite(loss) else uniform_loss


def _strategy(settings: Settings) -> HierarchicalStrategy:
    if not settings.averages:
        return HierarchicalStrategy(group_size="world")
    return HierarchicalStrategy(
        group_size=settings.group_size,
        block_sync=_block_sync(settings),
        warmup_steps=settings.warmup_steps,
    )


def _block_sync(settings: Settings) -> ModelAveraging | BMUF | BMUFAdam | DiLoCo:
    rule = settings.qsr and QSR(coefficient=settings.qsr, max_block_size=settings.longest_block)
    common: dict[str, Any] = {
        "block_size": settings.block_size,
        "block_rule": rule,
        "across_dtype": settings.across_dtype,
        "across_density": settings.across_density,
    }
    if settings.system == "model_averaging":
        return ModelAveraging(**common)
    if settings.system == "diloco":
        return DiLoCo(
            **common,
            outer_lr=settings.outer_lr,
            outer_momentum="auto" if settings.outer_momentum is None else settings.outer_momentum,
            fragments=settings.fragments,
            overlap=settings.overlap,
            merge=settings.merge,
        )
    if settings.system in ("bmuf_cbm", "bmuf_nbm"):
        nesterov = settings.system == "bmuf_nbm"
        return BMUF(**common, block_momentum=settings.eta, nesterov=nesterov)
    return BMUFAdam(
        **common,
        block_momentum=settings.eta,
        moments="corrected" if settings.system == "bmuf_adam" else "average",
        moments_every=settings.moments_every,
        local_beta1="keep",
    )


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
