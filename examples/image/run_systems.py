"""Train image classifiers with one system after the other and note what came out of each.

Started on every rank, by ``torchrun.py`` or ``lone_ranks.py``. The argument is a JSON object:
``runs``, a list of settings that all take the same number of ranks, and ``results``, a file to
which rank 0 appends one line of JSON for each run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, fields
from pathlib import Path
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
from examples.image.straggler import Casualty, Straggler
from examples.image.systems import SYSTEMS
from examples.image.wall_time import AccuracyOverTime
from examples.quiet import progress, silence_lightning


class HasMetrics(Protocol):
    """The part of this package's strategies that is asked here."""

    def metrics(self) -> dict[str, float]:
        """Values by name."""


class Accounts(Callback):
    """Gathers what all ranks have counted, while those that are there can still be asked.

    Args:
        clock: of this rank.
        pauses: of this rank.

    Attributes:
        rows: by rank, once training has ended.
    """

    def __init__(self, clock: StepClock, pauses: tuple[Straggler, Pace]) -> None:
        self.rows: list[RankResult] = []
        self._clock = clock
        self._pauses = pauses
        self._start_bytes = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note what is resident without training."""
        self._start_bytes = _peak_bytes()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gather."""
        own = torch.tensor(list(asdict(self._own(trainer)).values()), dtype=torch.float64)
        gathered = trainer.strategy.all_gather(own).reshape(-1, len(own))
        names = [field.name for field in fields(RankResult)]
        self.rows = [RankResult(**dict(zip(names, row, strict=True))) for row in gathered.tolist()]

    def _own(self, trainer: pl.Trainer) -> RankResult:
        counted = cast(HasMetrics, trainer.strategy).metrics()
        return RankResult(
            rank=trainer.global_rank,
            waited_s=self._clock.waited_s,
            median_step_s=self._clock.median_s,
            longest_step_s=self._clock.longest_s,
            slept_s=sum(pause.slept_s for pause in self._pauses),
            sent_bytes=sum(counted[f"hier/{tier}/payload_bytes"] for tier in ("group", "across")),
            dropped=counted.get("hier/psp/dropped", 0.0),
            updates=counted.get("hier/psp/rounds", 0.0),
            gradients_per_update=counted.get("hier/psp/gradients_per_round", 0.0),
            start_bytes=self._start_bytes,
            peak_bytes=_peak_bytes(),
        )


def _peak_bytes() -> int:
    """Most memory that has been resident; Linux counts it in KiB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(settings: Settings) -> Result:
    """Train and score. Every rank must call it."""
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(1)
    data = Images(
        corpus=settings.corpus,
        corpus_args=settings.corpus_args,
        batch_images=settings.batch_images,
        seed=settings.seed,
    )
    model = _model(settings, data)
    late = Straggler(
        rank=settings.late_rank,
        seconds=settings.late_seconds,
        fraction=settings.late_fraction if settings.late_seconds else 0.0,
        seed=settings.seed,
    )
    pace = Pace(settings.pace_seconds)
    clock, curve = StepClock([late, pace]), AccuracyOverTime()
    accounts = Accounts(clock, (late, pace))
    callbacks: list[Callback] = [clock, pace, late, curve, accounts]
    if settings.killed_rank is not None:
        callbacks.append(Casualty(rank=settings.killed_rank, step=settings.killed_step))
    trainer = _trainer(settings, callbacks)
    trainer.fit(model, data)
    return Result(
        settings=settings.portable_settings(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        train_seconds=curve.points[-1].seconds,
        test_accuracy=scoring.test_accuracy(model, data.corpus),
        curve=[(point.seconds, point.accuracy) for point in curve.points],
        ranks=[asdict(row) for row in accounts.rows],
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


def main() -> None:
    """Run what the argument says."""
    silence_lightning()
    job = json.loads(sys.argv[1])
    for settings in job["runs"]:
        result = run(Settings(**settings))
        if result.ranks[0]["rank"] == int(os.environ.get("RANK", "0")):
            with Path(job["results"]).open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    main()
