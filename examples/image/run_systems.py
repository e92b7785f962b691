"""Train image classifiers with several systems, and store the results.

``RunStore`` starts this module on every rank, and documents its argument.
"""

from __future__ import annotations

import resource
from dataclasses import asdict, fields
from typing import Protocol, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from examples.image import scoring
from examples.image.data_module import Images
from examples.image.model import ResNetClassifier
from examples.image.runs import RankResult, Result, Settings
from examples.image.step_clock import StepClock
from examples.image.step_pause import Pace
from examples.image.straggler import Straggler
from examples.image.systems import SYSTEMS
from examples.image.wall_time import AccuracyOverTime
from examples.quiet import progress, silence_lightning
from examples.run_store import run_job


class HasMetrics(Protocol):
    """A strategy of this package."""

    def metrics(self) -> dict[str, float]:
        """Return values by name."""


class RankResults(Callback):
    """Gathers the results of all ranks at the end of training.

    Args:
        clock: step times of this rank.
        pauses: delays of this rank.

    Attributes:
        results: results of the remaining ranks, in the order of ranks, at the end of training.
    """

    def __init__(self, clock: StepClock, pauses: tuple[Straggler, Pace]) -> None:
        self.results: list[RankResult] = []
        self._clock = clock
        self._pauses = pauses
        self._start_bytes = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the memory before training."""
        self._start_bytes = _peak_bytes()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gather the results. All remaining ranks must call it."""
        values = list(asdict(self._local_result(trainer)).values())
        row = torch.tensor(values, dtype=torch.float64)
        rows = trainer.strategy.all_gather(row).reshape(-1, len(row))
        names = [field.name for field in fields(RankResult)]
        self.results = [RankResult(**dict(zip(names, row, strict=True))) for row in rows.tolist()]

    def _local_result(self, trainer: pl.Trainer) -> RankResult:
        metrics = cast(HasMetrics, trainer.strategy).metrics()
        return RankResult(
            rank=trainer.global_rank,
            waited_s=self._clock.waited_s,
            median_step_s=self._clock.median_s,
            longest_step_s=self._clock.longest_s,
            slept_s=sum(pause.slept_s for pause in self._pauses),
            sent_bytes=sum(metrics[f"hier/{tier}/payload_bytes"] for tier in ("group", "across")),
            dropped=metrics.get("hier/psp/dropped", 0.0),
            updates=metrics.get("hier/psp/rounds", 0.0),
            gradients_per_update=metrics.get("hier/psp/gradients_per_round", 0.0),
            start_bytes=self._start_bytes,
            peak_bytes=_peak_bytes(),
        )


def _peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB on Linux


def run(settings: Settings) -> Result:
    """Train and evaluate a model. Every rank must call it."""
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(1)
    data = Images(
        corpus=settings.corpus,
        corpus_args=settings.corpus_args,
        batch_images=settings.batch_images,
        seed=settings.seed,
    )
    model = _model(settings, data)
    straggler = Straggler(
        rank=settings.late_rank,
        seconds=settings.late_seconds,
        fraction=settings.late_fraction if settings.late_seconds else 0.0,
        seed=settings.seed,
    )
    pace = Pace(settings.pace_seconds)
    clock, curve = StepClock([straggler, pace]), AccuracyOverTime()
    rank_results = RankResults(clock, (straggler, pace))
    callbacks: list[Callback] = [clock, pace, straggler, curve, rank_results]
    trainer = _trainer(settings, callbacks)
    trainer.fit(model, data)
    return Result(
        settings=settings.portable_settings(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        train_seconds=curve.points[-1].seconds,
        test_accuracy=scoring.test_accuracy(model, data.corpus),
        curve=[(point.seconds, point.accuracy) for point in curve.points],
        ranks=[asdict(result) for result in rank_results.results],
    )


def _model(settings: Settings, data: Images) -> ResNetClassifier:
    system = SYSTEMS[settings.system]
    return ResNetClassifier(
        num_classes=data.corpus.num_classes,
        image_channels=data.corpus.channels,
        learning_rate=system.learning_rate(settings.learning_rate, settings.ranks),
        decay_epochs=settings.decay_epochs,
        **settings.model_args,
    )


def _trainer(settings: Settings, callbacks: list[Callback]) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=settings.ranks,
        strategy=SYSTEMS[settings.system].strategy(),
        max_epochs=settings.epochs,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[*callbacks, progress()],
    )


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
