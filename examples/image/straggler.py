"""A rank that is late on purpose, and one that dies."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import Callback

from examples.image.step_pause import StepPause


class Straggler(StepPause):
    """Makes the gradients of one rank late by a constant.

    Which batches are late is drawn from (``seed``, epoch, batch), so two runs have the same late
    batches whatever else happens.

    Args:
        rank: that is late.
        seconds: for each late batch.
        fraction: of the rank's batches that are late, from 0 to 1.
        seed: of the draws.

    Attributes:
        late_batches: (epoch, batch) in front of whose backward this rank has slept.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, rank: int, seconds: float, fraction: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        if rank < 0:
            raise ValueError(f"rank must be at least 0, got {rank}")
        if seconds < 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
        self.rank = rank
        self.seconds = seconds
        self.fraction = fraction
        self.seed = seed
        self.late_batches: list[tuple[int, int]] = []
        self._own_rank: int | None = None

    def is_late(self, epoch: int, batch: int) -> bool:
        """Whether the late rank sleeps at this batch."""
        draw = np.random.default_rng([self.seed, epoch, batch])
        return bool(draw.random() < self.fraction)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the rank exists; otherwise nobody would be late.

        Raises:
            ValueError: it does not.
        """
        if self.rank >= trainer.world_size:
            raise ValueError(
                f"rank must be smaller than the number of ranks, {trainer.world_size}, got "
                f"{self.rank}"
            )
        self._own_rank = trainer.global_rank

    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """The same for each late batch, however long it was computed."""
        if self._own_rank != self.rank or not self.is_late(epoch, batch):
            return 0.0
        self.late_batches.append((epoch, batch))
        return self.seconds


class Casualty(Callback):
    """Kills one rank at a step, as if its host had gone.

    Args:
        rank: that dies.
        step: before which it dies, by ``Trainer.global_step``.
    """

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank = rank
        self.step = step

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Die, without a word to anybody."""
        if (trainer.global_rank, trainer.global_step) == (self.rank, self.step):
            os.kill(os.getpid(), signal.SIGKILL)
