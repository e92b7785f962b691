"""Train the tiny language model by one of the demo's systems.

``RunStore`` starts this module on every rank.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from examples.language.data_module import Text
from examples.language.model import LanguageModel
from examples.quiet import progress, quiet_trainer, silence_lightning
from examples.run_store import run_job
from lightning_hier import BMUFAdam, HierarchicalStrategy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run.

    Attributes:
        system: BMUF-Adam in two groups of two, or DDP.
        ranks: number of processes.
        steps: number of optimizer steps of each rank.
        validations: number of evaluations on the valid split, at equal intervals. The last one is
            at the end.
        context: number of tokens of a window.
        batch_windows: number of windows in a batch of one rank.
        learning_rate: peak learning rate of AdamW.
        beta1: first beta of AdamW. The default is the value to which BMUF-Adam lowers a larger
            beta, so that both systems use the same.
        eval_share: fraction of the valid and test batches that are evaluated.

    """

    system: Literal["bmuf_adam", "ddp"]
    ranks: int = 4
    steps: int = 300
    validations: int = 6
    context: int = 128
    batch_windows: int = 8
    learning_rate: float = 4e-3
    beta1: float = 0.5
    eval_share: float = 1.0

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings as a dictionary."""
        return asdict(self)


class Point(NamedTuple):
    """A point of the learning curve.

    Attributes:
        step: number of steps of each rank so far.
        across_bytes: payload that all ranks have sent across groups so far. It includes all bytes
            of DDP, whose ranks would be on several hosts.
        bits_per_byte: bits per byte of the valid split.

    """

    step: int
    across_bytes: int
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run.
        curve: a ``Point`` for each validation, in order.
        test_bits_per_byte: bits per byte of the test split.
        group_bytes: payload that all ranks have sent inside groups.
        train_seconds: duration of ``fit``, including validation.

    """

    settings: dict[str, Any]
    curve: list[Point]
    test_bits_per_byte: float
    group_bytes: int
    train_seconds: float

    @property
    def points(self) -> list[Point]:
        """The learning curve, also after a round trip through JSON."""
        return [Point(*point) for point in self.curve]


class LearningCurve(Callback):
    """Record the step, the bytes sent by this rank and the bits per byte at each validation."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.bytes: list[tuple[int, int]] = []
        self.bits: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the values of this validation."""
        self.steps.append(trainer.global_step)
        self.bytes.append(_sent_bytes(trainer.strategy))
        self.bits.append(float(trainer.callback_metrics["valid/bits_per_byte"]))

    def points(self) -> tuple[list[Point], int]:
        """Return the curve, and the bytes inside groups at its end. A collective of the world."""
        # After training, so that the time of the run does not include the collective.
        total = torch.tensor(self.bytes, dtype=torch.int64)
        dist.all_reduce(total)
        group, across = total.unbind(1)
        points = zip(self.steps, across.tolist(), self.bits, strict=True)
        return [Point(*point) for point in points], int(group[-1])


def run(settings: Settings) -> Result:
    """Train and test with one system. Every rank must call it."""
    pl.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    data = Text(
        context=settings.context, batch_windows=settings.batch_windows, eval_batch_windows=64
    )
    model = LanguageModel(size="tiny", learning_rate=settings.learning_rate, beta1=settings.beta1)
    curve = LearningCurve()
    strategy = (
        HierarchicalStrategy(group_size=2, block_sync=BMUFAdam())
        if settings.system == "bmuf_adam"
        else HierarchicalStrategy(group_size="world")  # DDP that counts its bytes
    )
    trainer = quiet_trainer(
        devices=settings.ranks,
        strategy=strategy,
        max_steps=settings.steps,
        gradient_clip_val=1.0,
        check_val_every_n_epoch=None,
        val_check_interval=settings.steps // settings.validations,
        limit_val_batches=settings.eval_share,
        limit_test_batches=settings.eval_share,
        enable_progress_bar=True,
        callbacks=[curve, progress()],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    points, group_bytes = curve.points()
    scores = trainer.test(model, data, verbose=False)[0]
    return Result(
        settings=asdict(settings),
        curve=points,
        test_bits_per_byte=scores["test/bits_per_byte"],
        group_bytes=group_bytes,
        train_seconds=seconds,
    )


def _sent_bytes(strategy: object) -> tuple[int, int]:
    """Return the payload bytes that this rank has sent, inside groups and across groups."""
    assert isinstance(strategy, HierarchicalStrategy)
    group, across = (strategy.traffic.total(tier).payload_bytes for tier in ("group", "across"))
    # The single group of DDP would span several hosts.
    return (0, group) if strategy.block_sync is None else (group, across)


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
