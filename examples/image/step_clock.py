"""A callback that measures training steps, and the waiting time in them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from examples.image.step_pause import StepPause


class StepClock(Callback):
    """Measures the duration of training steps and the waiting time in them, for any strategy.

    The waiting time is the time in which the main thread neither computes nor sleeps in one of the
    ``pauses``. It waits for other ranks, the network, or a core. The computation is the CPU time of
    the thread. Communication that overlaps with computation is therefore not waiting time.

    Args:
        pauses: callbacks that sleep intentionally.

    Attributes:
        steps_s: duration of each training step in seconds.
    """

    def __init__(self, pauses: Sequence[StepPause] = ()) -> None:
        self.steps_s: list[float] = []
        self._pauses = pauses
        self._computed_s = 0.0
        self._begun = (0.0, 0.0)

    @property
    def waited_s(self) -> float:
        """Waiting time in all training steps, in seconds."""
        slept = sum(pause.slept_s for pause in self._pauses)
        return max(0.0, sum(self.steps_s) - self._computed_s - slept)

    @property
    def longest_s(self) -> float:
        """Duration of the longest training step in seconds."""
        return max(self.steps_s, default=0.0)

    @property
    def median_s(self) -> float:
        """Median duration of training steps in seconds."""
        return statistics.median(self.steps_s) if self.steps_s else 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the wall time and the CPU time."""
        self._begun = (time.monotonic(), time.thread_time())

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add the duration and the CPU time of the step."""
        wall, cpu = self._begun
        self.steps_s.append(time.monotonic() - wall)
        self._computed_s += time.thread_time() - cpu
