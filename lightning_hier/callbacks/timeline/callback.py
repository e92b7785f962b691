"""The callback that a user adds to the Trainer to get a timeline."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.callbacks.timeline.recorder import COMPUTE, Recorder
from lightning_hier.callbacks.timeline.trace_file import TraceFile
from lightning_hier.comm.clock import agree_on_zero

# A run that is killed loses what is newer than this.
_FLUSH_EVERY_S = 2.0


class Timeline(Callback):
    """Writes what every rank does, and when, while a Trainer fits; open it at ui.perfetto.dev.

    Each fit makes a folder named by the time of its start (UTC, of rank 0) with one file a rank,
    ``rank_00000.json``; :func:`~lightning_hier.callbacks.timeline.merge_timelines` makes one of
    them. All ranks must have the callback. Works with any strategy; traffic is that of ours. The
    ranks' clocks are aligned once, when fitting starts, through the process group; nothing else is
    sent.

    Args:
        path: folder, on each host its own or a shared one.
        max_events: that a rank writes (about 130 bytes each); later ones are counted, and a
            warning says how many they are.

    Raises:
        ValueError: ``max_events`` is less than 1.

    """

    def __init__(self, path: str | Path = "timeline", *, max_events: int = 1_000_000) -> None:
        if max_events < 1:
            raise ValueError(f"max_events must be at least 1, got {max_events}")
        self._path = Path(path)
        self._max_events = max_events
        self._recorder: Recorder | None = None
        self._at_end = ExitStack()
        self._batch_s = self._mark_s = self._validation_s = self._flushed_s = 0.0
        self._update_s: float | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Align the clocks and open the file. A collective of the world."""
        if stage != "fit":
            return
        zero = agree_on_zero(trainer.strategy.root_device)
        begun = datetime.fromtimestamp(zero.wall_s, timezone.utc)
        folder = self._path / begun.strftime("%Y%m%d-%H%M%S-%f")[:-3]
        rank = trainer.global_rank
        file = TraceFile(folder / f"rank_{rank:05d}.json", max_events=self._max_events)
        self._recorder = Recorder(file, rank=rank, host=socket.gethostname(), zero_s=zero.own_s)
        self._recorder.mark("start", zero.own_s, utc=begun.isoformat())
        self._flushed_s = zero.own_s
        self._at_end = ExitStack()
        self._at_end.callback(_time_saves(trainer, self._recorder))
        traffic = getattr(trainer.strategy, "traffic", None)
        if traffic is not None:
            traffic.attach(self._recorder)
            self._at_end.callback(traffic.detach, self._recorder)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Mark the epoch."""
        self._running.mark(f"epoch {trainer.current_epoch}", time.perf_counter())

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a batch."""
        self._batch_s = self._mark_s = time.perf_counter()
        self._update_s = None

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """End a forward pass."""
        self._end_update()
        self._end_part("forward")

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End a backward pass."""
        self._end_part("backward")

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Begin an update."""
        self._end_update()
        self._update_s = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End a batch."""
        self._end_update()
        now_s = time.perf_counter()
        self._running.slice(COMPUTE, "batch", self._batch_s, now_s, step=trainer.global_step)
        if now_s - self._flushed_s >= _FLUSH_EVERY_S:
            self._running.flush()
            self._flushed_s = now_s

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin a validation."""
        self._validation_s = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End a validation."""
        if self._recorder is not None:  # trainer.validate() is not recorded
            name = "sanity check" if trainer.sanity_checking else "validation"
            self._recorder.slice(COMPUTE, name, self._validation_s, time.perf_counter())

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the file with the name of what ended the run."""
        self._close(f"ended by {type(exception).__name__}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the file."""
        self._close("end")

    def _end_part(self, name: str) -> None:
        now_s = time.perf_counter()
        self._running.slice(COMPUTE, name, self._mark_s, now_s)
        self._mark_s = now_s

    def _end_update(self) -> None:
        """An update ends where a synchronisation follows it, or now."""
        if self._update_s is not None:
            synchronised_s = self._running.last_synchronisation_s
            end_s = synchronised_s if synchronised_s > self._update_s else time.perf_counter()
            self._running.slice(COMPUTE, "update", self._update_s, end_s)
            self._update_s, self._mark_s = None, time.perf_counter()

    def _close(self, how: str) -> None:
        if self._recorder is None:
            return
        self._at_end.close()
        self._recorder.close(time.perf_counter(), how)
        if self._recorder.left_out:
            warnings.warn(
                f"{self._recorder.left_out} events of {self._recorder.path} were left out: "
                f"max_events is {self._max_events}. Raise it, or record a shorter run.",
                stacklevel=2,
            )
        self._recorder = None

    @property
    def _running(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("a timeline is recorded only while the Trainer fits")
        return self._recorder


def _time_saves(trainer: pl.Trainer, recorder: Recorder) -> Callable[[], None]:
    """Record each save of a checkpoint, which has no hook at its end; returns what undoes it."""
    original = trainer.save_checkpoint

    def save_checkpoint(filepath: str | Path, *args: Any, **kwargs: Any) -> None:
        begun_s = time.perf_counter()
        original(filepath, *args, **kwargs)
        recorder.slice(COMPUTE, "checkpoint", begun_s, time.perf_counter(), path=str(filepath))

    trainer.save_checkpoint = save_checkpoint  # type: ignore[method-assign]
    return lambda: trainer.__dict__.pop("save_checkpoint", None)
