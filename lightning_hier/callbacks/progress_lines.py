"""Progress as lines of text, for output to a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar


class ProgressLines(ProgressBar):
    """Writes a line at the start and at the end of a run, and at most every few seconds between.

    A line contains the epoch, the batch, and the values of a progress bar. Only global rank 0
    writes.

    Args:
        every_s: minimum number of seconds between two lines.
        write: function that writes a line.
        clock: function that returns seconds.

    Raises:
        ValueError: ``every_s`` is negative.
    """

    def __init__(
        self,
        every_s: float = 10.0,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        if every_s < 0:
            raise ValueError(f"every_s must be at least 0, got {every_s}")
        self._every_s = every_s
        self._write = write or _print
        self._clock = clock
        self._is_enabled = True
        self._next_s = 0.0
        self._epoch_batches = float("inf")

    def disable(self) -> None:
        """Stop writing."""
        self._is_enabled = False

    def enable(self) -> None:
        """Resume writing."""
        self._is_enabled = True

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Disable writing on all ranks except global rank 0."""
        super().setup(trainer, pl_module, stage)
        if not trainer.is_global_zero:
            self.disable()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write that training starts."""
        self._emit(f"{self.train_description}: {self.total_train_batches} batches in an epoch")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the number of batches."""
        # With max_steps, Lightning's total is the number of remaining steps, which decreases.
        self._epoch_batches = self.total_train_batches

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Write a line if one is due."""
        self._emit_if_due(f"{self._epoch()}, {_batch(batch_idx, self._epoch_batches)}")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write a line if one is due. Values of the whole epoch are available now."""
        self._emit_if_due(f"{self._epoch()} done")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the last line."""
        self._emit(f"{self.train_description}: {trainer.global_step} steps done{self._values()}")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write that the test starts."""
        self._emit(self.test_description)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write a line if one is due."""
        self._evaluated("val", self.validation_description, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write a line if one is due."""
        self._evaluated("test", self.test_description, batch_idx, dataloader_idx)

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write a line if one is due."""
        self._evaluated("predict", self.predict_description, batch_idx, dataloader_idx)

    def _evaluated(self, kind: str, description: str, batch_idx: int, dataloader_idx: int) -> None:
        # Updates the data loader to which the total below belongs.
        self.has_dataloader_changed(dataloader_idx)
        total = getattr(self, f"total_{kind}_batches_current_dataloader")
        self._emit_if_due(f"{description}: {_batch(batch_idx, total)}")

    def _epoch(self) -> str:
        trainer = self.trainer
        most = "" if trainer.max_epochs in (None, -1) else f"/{trainer.max_epochs}"
        return f"Epoch {trainer.current_epoch + 1}{most}"

    def _values(self) -> str:
        """Values of a progress bar, without the version of the run."""
        # The method that TrainerChanges extends by the values of this package.
        shown = self.get_metrics(self.trainer, self.trainer.lightning_module)
        values = {name: value for name, value in shown.items() if name != "v_num"}
        return "".join(
            f", {name} {value:.4g}" if isinstance(value, float) else f", {name} {value}"
            for name, value in values.items()
        )

    def _emit_if_due(self, line: str) -> None:
        if self._is_enabled and self._clock() >= self._next_s:
            self._emit(line + self._values())

    def _emit(self, line: str) -> None:
        if self._is_enabled:
            self._write(line)
            self._next_s = self._clock() + self._every_s


def _batch(batch_idx: int, total: float) -> str:
    # A total in steps is too small if a step accumulates several batches.
    is_known = batch_idx < total < float("inf")
    share = f" of {total} ({(batch_idx + 1) / total:.0%})" if is_known else ""
    return f"batch {batch_idx + 1}{share}"


def _print(line: str) -> None:
    # Flushed, because output to a file or a pipe is buffered, and a killed run would lose it.
    print(line, flush=True)
