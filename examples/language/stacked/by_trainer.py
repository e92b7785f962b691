"""Training of the same run by the package's strategies and Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from examples.language.model import LanguageModel
from examples.language.stacked.draws import Draws
from examples.language.stacked.model import flat
from examples.language.stacked.settings import (
    CLIP,
    CONTEXT,
    MOMENTUM,
    SHAPE,
    VOCABULARY,
    WEIGHT_DECAY,
    Settings,
)
from examples.language.windows import Batch
from examples.quiet import silence_lightning
from examples.rank_batches import rank_and_world_size
from lightning_hier import BMUF, QSR, BMUFAdam, DiLoCo, HierarchicalStrategy, ModelAveraging


class _Batches(Dataset[Batch]):
    """Batches by step and worker."""

    def __init__(self, settings: Settings) -> None:
        self._draws = Draws(settings)

    def __getitem__(self, step_and_worker: tuple[int, int]) -> Batch:
        step, worker = step_and_worker
        inputs, targets = (tokens[worker] for tokens in self._draws.batch(step))
        return Batch(inputs, targets, None)


class _WorkerSteps(DistributedSampler[Any]):
    """Sampler of the keys (step, worker) of one worker."""

    def __init__(self, settings: Settings, worker: int, workers: int) -> None:
        super().__init__(
            range(settings.steps),  # type: ignore[arg-type]  # only its length is used
            num_replicas=workers,
            rank=worker,
        )
        self._steps = settings.steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return iter([(step, self.rank) for step in range(self._steps)])


class _Data(pl.LightningDataModule):
    is_fitting = False  # disables the model's check of its vocabulary, which needs a corpus

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of one worker. The strategy calls it once for each worker."""
        sampler = _WorkerSteps(self._settings, *rank_and_world_size(self.trainer))
        return DataLoader(_Batches(self._settings), sampler=sampler, batch_size=None)


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


def train_by_trainer(
    settings: Settings, dtype: torch.dtype = torch.float32, *, ranks: int = 1
) -> tuple[Tensor, int]:
    """Return the global model (P,) after training, and the number of synchronisations of models.

    Every rank must call it.

    Args:
        settings: settings of the run.
        dtype: dtype of the weights.
        ranks: number of ranks, each of which trains equally many workers.

    """
    silence_lightning()
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
    ).to(dtype)
    model.sgd_rate = settings.learning_rate if settings.optimizer == "sgd" else None
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=_strategy(settings, settings.workers // ranks),
        max_steps=settings.steps,
        gradient_clip_val=CLIP,
        limit_val_batches=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, _Data(settings))
    blocks = -(-(settings.steps - settings.warmup_steps) // settings.block_size)
    return flat(model.transformer), blocks if settings.averages else 0


def _strategy(settings: Settings, virtual_workers: int) -> HierarchicalStrategy:
    if not settings.averages:
        return HierarchicalStrategy(group_size="world", virtual_workers=virtual_workers)
    return HierarchicalStrategy(
        group_size=settings.group_size,
        block_sync=_block_sync(settings),
        warmup_steps=settings.warmup_steps,
        virtual_workers=virtual_workers,
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
