"""Train the image classifier by one of the demo's systems. ``RunStore`` starts it on every rank."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from examples.image.digits import Images, ResNetClassifier
from examples.image.step_pause import StepClock, Straggler
from examples.quiet import progress, quiet_trainer, silence_lightning
from examples.run_store import run_job
from lightning_hier import HierarchicalStrategy, PSPStrategy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        system: synchronous SGD by all-reduce, or PSP-SGD that waits for 3/4 of the gradients.
        late_seconds: delay of the late rank in each step, in seconds.
        epochs: number of epochs.
        decay_epochs: epochs after which the learning rate is multiplied by 0.1.
        batch_images: number of images in a mini-batch of one rank.
        learning_rate: learning rate of one gradient. For a step with d gradients, it is multiplied
            by d.
        ranks: number of processes.
        late_rank: rank that is late.
    """

    system: Literal["all_reduce", "psp"]
    late_seconds: float
    epochs: int
    decay_epochs: list[int] = field(default_factory=list)
    batch_images: int = 16
    learning_rate: float = 0.02
    ranks: int = 4
    late_rank: int = 3

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings as a dictionary."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run.
        test_accuracy: test accuracy of the final model, from 0 to 1.
        curve: seconds since the start of training, and accuracy on the valid split, for each epoch.
        waited_s: waiting time of each rank in training steps, in seconds, see ``StepClock``.
        slept_s: delay of each rank in all steps, in seconds.
        sent_bytes: payload that all ranks sent.
        dropped_gradients: mean number of gradients that a server dropped because they were late.
        used_share: fraction of all batches whose gradients are part of updates, from 0 to 1.
    """

    settings: dict[str, Any]
    test_accuracy: float
    curve: list[tuple[float, float]]
    waited_s: list[float]
    slept_s: list[float]
    sent_bytes: float
    dropped_gradients: float
    used_share: float


class AccuracyOverTime(Callback):
    """Records the seconds since the start of training, and the accuracy, of each validation."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._begun_s = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._begun_s = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the accuracy."""
        if trainer.state.fn == TrainerFn.FITTING:
            accuracy = float(trainer.callback_metrics["valid/accuracy"])
            self.points.append((time.monotonic() - self._begun_s, accuracy))


class RankValues(Callback):
    """Gathers values of all ranks at the end of training, as rows of ``table``."""

    def __init__(self, clock: StepClock, straggler: Straggler) -> None:
        self.table = torch.empty(0)
        self._clock = clock
        self._straggler = straggler

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gather the values."""
        strategy: Any = trainer.strategy
        metrics = strategy.metrics()
        values = [
            self._clock.waited_s,
            self._straggler.slept_s,
            sum(metrics[f"hier/{tier}/payload_bytes"] for tier in ("group", "across")),
            metrics.get("hier/psp/dropped", 0.0),
            metrics.get("hier/psp/gradients_per_round", float(trainer.world_size)),
        ]
        row = torch.tensor(values, dtype=torch.float64)
        self.table = strategy.all_gather(row).reshape(-1, len(row))


def run(settings: Settings) -> Result:
    """Train and evaluate a model. Every rank must call it."""
    pl.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    is_psp = settings.system == "psp"
    # PSP-SGD multiplies the learning rate by the number of gradients of an update. All-reduce
    # averages the gradients.
    rate = settings.learning_rate * (1 if is_psp else settings.ranks)
    model = ResNetClassifier(learning_rate=rate, decay_epochs=settings.decay_epochs)
    data = Images(batch_images=settings.batch_images)
    straggler = Straggler(rank=settings.late_rank, seconds=settings.late_seconds)
    clock, curve = StepClock([straggler]), AccuracyOverTime()
    values = RankValues(clock, straggler)
    trainer = quiet_trainer(
        devices=settings.ranks,
        strategy=PSPStrategy(min_pushes=0.75)
        if is_psp
        else HierarchicalStrategy(group_size="world"),
        max_epochs=settings.epochs,
        enable_progress_bar=True,
        callbacks=[clock, straggler, curve, values, progress()],
    )
    trainer.fit(model, data)
    waited, slept, sent, dropped, used = values.table.unbind(1)
    return Result(
        settings=asdict(settings),
        test_accuracy=trainer.test(model, data, verbose=False)[0]["test/accuracy"],
        curve=curve.points,
        waited_s=waited.tolist(),
        slept_s=slept.tolist(),
        sent_bytes=float(sent.sum()),
        dropped_gradients=float(dropped.mean()),
        used_share=float(used.mean()) / settings.ranks,
    )


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
