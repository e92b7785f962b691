"""A callback that logs the steps of a group to a file, which remains if the group is killed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor

# Maximum length of two lines, in bytes.
_TWO_LINES = 1024


@dataclass(frozen=True)
class Line:
    """One line of the log.

    Attributes:
        event: ``"start"`` of training, ``"step"``, ``"block"`` (a step that ends a block), or
            ``"end"`` of training.
        pid: id of the process.
        step: number of steps of the run so far.
        time_s: time on the monotonic clock of the machine, in seconds.
        loss: loss of the batch, for ``"step"`` and ``"block"``.
        digest: digest of the global model, for all events except ``"step"``.
        valid_loss: loss on the validation data, for ``"block"``, if ``validate`` is given.

    """

    event: str
    pid: int
    step: int
    time_s: float
    loss: float | None = None
    digest: str | None = None
    valid_loss: float | None = None


class StepLog(Callback):
    """Append a line to a file for every step.

    Args:
        file: log file of this group. Its folder must exist.
        block_size: number of steps of a block.
        validate: function that computes the validation loss of a module, at the ends of blocks.

    """

    def __init__(
        self,
        file: Path,
        *,
        block_size: int,
        validate: Callable[[pl.LightningModule], float] | None = None,
    ) -> None:
        self._file = file
        self._block_size = block_size
        self._validate = validate

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write("start", trainer, digest=_global_digest(trainer))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        loss = float(outputs["loss"])
        if trainer.global_step % self._block_size:
            self._write("step", trainer, loss=loss)
            return
        valid_loss = self._validate(pl_module) if self._validate is not None else None
        digest = _global_digest(trainer)
        self._write("block", trainer, loss=loss, digest=digest, valid_loss=valid_loss)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write("end", trainer, digest=_global_digest(trainer))

    def _write(self, event: str, trainer: pl.Trainer, **values: Any) -> None:
        line = Line(event, os.getpid(), trainer.global_step, time.monotonic(), **values)
        # A single write, so that a kill leaves at most one incomplete line, at the end.
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, (json.dumps(asdict(line)) + "\n").encode())
        os.close(handle)


def _global_digest(trainer: pl.Trainer) -> str:
    # What a checkpoint would hold. Local models differ where updates are applied with a delay.
    return digest_of(trainer.strategy.lightning_module_state_dict())


def digest_of(state: Mapping[str, Tensor]) -> str:
    """Return a digest of a state dict, which is equal only if all bits are equal."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def read_log(file: Path) -> list[Line]:
    """Return all complete lines so far. The list is empty if the file does not exist."""
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [Line(**json.loads(line)) for line in lines if line.endswith("\n")]


def last_line(file: Path) -> Line | None:
    """Return the last complete line, without reading the whole file."""
    if not file.exists():
        return None
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - _TWO_LINES))
        complete = log.read().decode().split("\n")[:-1]
    return Line(**json.loads(complete[-1])) if complete else None
