"""Callbacks that delay the computation of gradients, and measure the waiting time of steps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
        self._is_due = False
        self._hook: RemovableHandle | None = None

    @abstractmethod
    def pause_s(self, computed_s: float) -> float:
        """Return the seconds that this rank sleeps, ``computed_s`` after the start of a batch."""

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
        """Note the start of the batch."""
        self._is_due = True
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
        self._is_due = False

    def _after_forward(self, *_: Any) -> None:
        if not self._is_due:
            return  # DDP calls the module twice per batch: around training_step and in it
        self._is_due = False
        seconds = self.pause_s(time.monotonic() - self._begun_s)
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

    def pause_s(self, computed_s: float) -> float:
        """Return the rest of the minimum duration."""
        return self.seconds - computed_s


class Straggler(StepPause):
    """Delays the gradients of one rank by a constant time.

    Args:
        rank: rank that is late.
        seconds: delay of each batch in seconds.

    Raises:
        ValueError: if ``seconds`` is negative.
    """

    def __init__(self, *, rank: int, seconds: float) -> None:
        super().__init__()
        if seconds < 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self.rank = rank
        self.seconds = seconds
        self._is_late = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the late rank exists.

        Raises:
            ValueError: if it does not exist.
        """
        if not 0 <= self.rank < trainer.world_size:
            raise ValueError(f"rank must be from 0 to {trainer.world_size - 1}, got {self.rank}")
        self._is_late = trainer.global_rank == self.rank

    def pause_s(self, computed_s: float) -> float:
        """Return the delay, which does not depend on ``computed_s``."""
        return self.seconds if self._is_late else 0.0


class StepClock(Callback):
    """Measures the waiting time in training steps, for any strategy.

    The waiting time is the time in which the main thread neither computes nor sleeps in one of the
    ``pauses``. It waits for other ranks, the network, or a core. The computation is the CPU time of
    the thread. Communication that overlaps with computation is therefore not waiting time.

    Args:
        pauses: callbacks that sleep intentionally.
    """

    def __init__(self, pauses: Sequence[StepPause] = ()) -> None:
        self._pauses = pauses
        self._idle_s = 0.0
        self._begun_s = 0.0

    @property
    def waited_s(self) -> float:
        """Waiting time in all training steps, in seconds."""
        return max(0.0, self._idle_s - sum(pause.slept_s for pause in self._pauses))

    def on_train_batch_start(self, *_: Any) -> None:
        """Note the wall time that is not CPU time."""
        self._begun_s = time.monotonic() - time.thread_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """Add the wall time of the step that is not CPU time."""
        self._idle_s += time.monotonic() - time.thread_time() - self._begun_s
