"""How long a rank's training steps took, and how much of that it waited."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from examples.image.step_pause import StepPause


class StepClock(Callback):
    """Measures training steps, in the same way whatever the strategy does.

    A rank waits while its main thread neither computes nor sleeps on purpose: for other ranks, for
    the network, or for a core. What is computed is the thread's own CPU time, so a step that
    communicates while it computes has only waited for the rest.

    Args:
        pauses: whose sleep is no waiting.

    Attributes:
        steps_s: seconds of each training step.
    """

    def __init__(self, pauses: Sequence[StepPause] = ()) -> None:
        self.steps_s: list[float] = []
        self._pauses = pauses
        self._computed_s = 0.0
        self._begun = (0.0, 0.0)

    @property
    def waited_s(self) -> float:
        """Seconds of waiting in all training steps."""
        slept = sum(pause.slept_s for pause in self._pauses)
        return max(0.0, sum(self.steps_s) - self._computed_s - slept)

    @property
    def longest_s(self) -> float:
        """Seconds of the longest training step."""
        return max(self.steps_s, default=0.0)

    @property
    def median_s(self) -> float:
        """Seconds of the median training step."""
        return statistics.median(self.steps_s) if self.steps_s else 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start both clocks."""
        self._begun = (time.monotonic(), time.thread_time())

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop both clocks."""
        wall, computed = self._begun
        self.steps_s.append(time.monotonic() - wall)
        self._computed_s += time.thread_time() - computed
