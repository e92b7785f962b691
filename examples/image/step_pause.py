"""Callbacks that delay the computation of gradients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.utils.hooks import RemovableHandle


class StepPause(Callback, ABC):
    """Sleeps between the forward and backward pass, as if the computation took longer.

    The pause is a forward hook of the module, which runs once per batch. ``training_step`` must
    therefore call the module. A batch whose gradient a strategy does not compute has no pause.

    Attributes:
        slept_s: seconds that this rank has slept.
    """

    def __init__(self) -> None:
        self.slept_s = 0.0
        self._begun_s = 0.0
        self._batch: tuple[int, int] | None = None
        self._hook: RemovableHandle | None = None

    @abstractmethod
    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """Return the seconds that this rank sleeps in a batch.

        Args:
            epoch: index of the epoch.
            batch: index of the batch.
            computed_s: seconds since the start of the batch.
        """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Register the forward hook."""
        self._hook = pl_module.register_forward_hook(self._after_forward)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the forward hook."""
        if self._hook is not None:
            self._hook.remove()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the batch and its start."""
        self._batch = (trainer.current_epoch, batch_idx)
        self._begun_s = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Disable the pause, so that validation does not sleep."""
        self._batch = None

    def _after_forward(self, *_: Any) -> None:
        if self._batch is None:
            return  # DDP calls the module twice per batch: around training_step and in it
        batch, self._batch = self._batch, None
        seconds = self.pause_s(*batch, time.monotonic() - self._begun_s)
        if seconds > 0.0:
            time.sleep(seconds)
            self.slept_s += seconds


class Pace(StepPause):
    """Extends all forward passes of this rank to a minimum duration, as on a slower device.

    Many ranks on few cores then compute in parallel, as on separate machines.

    Args:
        seconds: minimum time from the start of a batch to its backward pass.

    Raises:
        ValueError: if ``seconds`` is negative.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        if seconds < 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self.seconds = seconds

    def pause_s(self, epoch: int, batch: int, computed_s: float) -> float:
        """Return the rest of the minimum duration."""
        return self.seconds - computed_s
