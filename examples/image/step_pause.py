"""Gradients that take longer than they would."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.utils.hooks import RemovableHandle


class StepPause(Callback, ABC):
    """Sleeps between forward and backward, as if the rank computed for longer.

    A batch of which a strategy computes no gradient costs nothing: the pause hangs on the forward
    of the module, which ``training_step`` must call, and happens once in a batch.

    Attributes:
        slept_s: seconds that this rank has slept.
    """

    def __init__(self) -> None:
        self.slept_s = 0.0
        self._begun_s = 0.0
        self._here: tuple[int, int] | None = None
        self._hook: RemovableHandle | None = None

    @abstractmethod
    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """How long this rank sleeps, when it has computed for so many seconds."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hang the pause on the module."""
        self._hook = pl_module.register_forward_hook(self._after_forward)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take it away."""
        if self._hook is not None:
            self._hook.remove()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note which batch comes."""
        self._here = (trainer.current_epoch, batch_idx)
        self._begun_s = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Let validation be."""
        self._here = None

    def _after_forward(self, *_: Any) -> None:
        if self._here is None:
            return  # DDP calls the module once around training_step and once inside
        here, self._here = self._here, None
        seconds = self.pause_s(*here, time.monotonic() - self._begun_s)
        if seconds > 0.0:
            time.sleep(seconds)
            self.slept_s += seconds


class Pace(StepPause):
    """Makes all forwards of this rank take at least so long, as on a slower device.

    Many ranks on few cores then take their steps beside each other, as on machines of their own.

    Args:
        seconds: from the start of a batch to its backward.

    Raises:
        ValueError: a negative number.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        if seconds < 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self.seconds = seconds

    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """What is left of the time."""
        return self.seconds - computed_s
