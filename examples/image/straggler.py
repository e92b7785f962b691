"""Callback that delays a rank."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np

from examples.image.step_pause import StepPause


class Straggler(StepPause):
    """Delays the gradients of one rank by a constant time.

    The late batches depend only on (``seed``, epoch, batch). They are therefore the same in
    different runs.

    Args:
        rank: rank that is late.
        seconds: delay of each late batch in seconds.
        fraction: fraction of the rank's batches that are late, from 0 to 1.
        seed: seed of the selection of late batches.

    Attributes:
        late_batches: (epoch, batch) of the batches that this rank has delayed.

    Raises:
        ValueError: if a number is out of range.
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
        self._global_rank: int | None = None

    def is_late(self, epoch: int, batch: int) -> bool:
        """Return whether the batch is late on the late rank."""
        generator = np.random.default_rng([self.seed, epoch, batch])
        return bool(generator.random() < self.fraction)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the late rank exists.

        Raises:
            ValueError: if it does not exist.
        """
        if self.rank >= trainer.world_size:
            raise ValueError(
                f"rank must be smaller than the number of ranks, {trainer.world_size}, got "
                f"{self.rank}"
            )
        self._global_rank = trainer.global_rank

    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """Return the delay, which does not depend on ``computed_s``."""
        if self._global_rank != self.rank or not self.is_late(epoch, batch):
            return 0.0
        self.late_batches.append((epoch, batch))
        return self.seconds
