"""Train one system on one corpus.

:class:`examples.run_store.RunStore` starts this module. The argument is one JSON object.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.decode_words import DecodeWords
from examples.acoustic.fixed_schedule import FixedScheduleLSTM
from examples.acoustic.systems import SYSTEMS
from examples.quiet import progress, quiet_trainer, silence_lightning
from examples.run_store import portable, run_job
from lightning_hier import HierarchicalStrategy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        system: name of a system in ``SYSTEMS``.
        corpus: argument of ``AcousticDataModule``.
        corpus_args: argument of ``AcousticDataModule``.
        ranks: number of processes, 1 for systems without strategy.
        group_size: number of ranks of a group, for systems with two tiers.
        block_size: number of steps between two synchronisations of models.
        density: fraction of the gradient that GTC sends.
        warmup_steps: number of first steps with all-reduce over all ranks.
        seed: seed of the initial model and of the order of batches.
        epochs: number of epochs.
        decay_epochs: number of the last epochs that halve the learning rate
            (:class:`~examples.acoustic.fixed_schedule.FixedScheduleLSTM`).
        batch_frames: largest number of frames of a batch of one rank.
        learning_rate: learning rate of SGD with momentum 0.9.
        hidden_dim: number of cells of each of the two LSTM layers.
        log_dir: folder of the TensorBoard logs.
        score: split whose errors are reported, ``"valid"`` or ``"test"``.

    """

    system: str
    corpus: str = "synthetic"
    corpus_args: dict[str, Any] = field(default_factory=dict)

    ranks: int = 4
    group_size: int = 2
    block_size: int = 10
    density: float = 0.05
    warmup_steps: int = 0
    seed: int = 0
    epochs: int = 10
    decay_epochs: int = 5
    batch_frames: int = 512
    learning_rate: float = 0.5
    hidden_dim: int = 128
    log_dir: str = "outputs/acoustic"
    score: str = "test"

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings without the folders of this machine."""
        return {**asdict(self), "corpus_args": portable(self.corpus_args), "log_dir": ""}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``Settings.portable_settings``.
        frame_error_rate: frame error rate.
        word_error_rate: word error rate of the test split, otherwise NaN.
        group_bytes: payload of all ranks inside groups.
        across_bytes: payload of all ranks across groups.
        train_seconds: duration of ``fit``, including validation.
        steps: number of steps of each rank.
        curve: number of steps, and frame error rate of the valid split, at the end of each epoch.

    """

    settings: dict[str, Any]
    frame_error_rate: float
    word_error_rate: float
    group_bytes: int
    across_bytes: int
    train_seconds: float
    steps: int
    curve: list[tuple[int, float]] = field(default_factory=list)


class LearningCurve(pl.Callback):
    """Records the number of steps and the frame error rate of every validation in training."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:  # not in the evaluation after training
            errors = float(trainer.callback_metrics["valid/frame_error_rate"])
            self.points.append((trainer.global_step, errors))


def data_and_model(settings: Settings) -> tuple[AcousticDataModule, FixedScheduleLSTM]:
    """Return the data module and the initial model, both with the seed of the settings."""
    pl.seed_everything(settings.seed, verbose=False)
    data = AcousticDataModule(
        corpus=settings.corpus,  # type: ignore[arg-type]
        corpus_args=settings.corpus_args,
        batch_frames=settings.batch_frames,
        seed=settings.seed,
    )
    model = FixedScheduleLSTM(
        feature_dim=data.corpus.feature_dim,
        num_senones=len(data.corpus.senones),
        hidden_dim=settings.hidden_dim,
        num_layers=2,
        learning_rate=settings.learning_rate,
        schedule_epochs=(settings.epochs, settings.decay_epochs),
    )
    return data, model


def trainer_for(settings: Settings, **further: Any) -> pl.Trainer:
    """Return a Trainer on the CPU with the strategy of the settings.

    Args:
        settings: settings of the run.
        further: further arguments of the Trainer.

    """
    system = SYSTEMS[settings.system]
    strategy = system.strategy(
        ranks=settings.ranks,
        group_size=settings.group_size,
        block_size=settings.block_size,
        density=settings.density,
        warmup_steps=settings.warmup_steps,
    )
    return quiet_trainer(strategy, gradient_clip_val=1.0, **further)


def run(settings: Settings) -> Result:
    """Train and evaluate. Every rank must call it."""
    torch.set_num_threads(1)
    data, model = data_and_model(settings)
    curve = LearningCurve()
    trainer = trainer_for(
        settings,
        devices=settings.ranks,
        max_epochs=settings.epochs,
        log_every_n_steps=5,
        logger=TensorBoardLogger(settings.log_dir, name=settings.system, version=settings.seed),
        enable_progress_bar=True,
        callbacks=[DecodeWords(), curve, progress()],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    group_bytes, across_bytes = _bytes_sent(trainer.strategy)
    scores = (trainer.test if settings.score == "test" else trainer.validate)(
        model, data, verbose=False
    )[0]
    return Result(
        settings=settings.portable_settings(),
        frame_error_rate=scores[f"{settings.score}/frame_error_rate"],
        # The model decodes only in test.
        word_error_rate=scores.get(f"{settings.score}/word_error_rate", math.nan),
        group_bytes=group_bytes,
        across_bytes=across_bytes,
        train_seconds=seconds,
        steps=trainer.global_step,
        curve=curve.points,
    )


def _bytes_sent(strategy: object) -> tuple[int, int]:
    """Return the payload bytes of all ranks, inside groups and across them."""
    if not isinstance(strategy, HierarchicalStrategy):
        return 0, 0
    payloads = [strategy.traffic.total(tier).payload_bytes for tier in ("group", "across")]
    total = torch.tensor(payloads, dtype=torch.int64)
    dist.all_reduce(total)
    group, across = total.tolist()
    return group, across


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
