"""A log of the steps of a group, which outlives a group that is killed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

# Bytes of two lines, at most.
_LONGEST = 1024


@dataclass(frozen=True)
class Line:
    """One line of the log.

    Attributes:
        event: ``"start"`` of training, ``"step"``, ``"block"`` (a step that ends a block), or
            ``"end"`` of training.
        pid: process of the group.
        step: steps of the run until then.
        time_s: seconds on the monotonic clock of the machine.
        loss: loss of the batch, of a step.
        digest: of the model, at the start, at the ends of blocks and at the end.
        valid_loss: loss on the validation data, at the ends of blocks, if it is computed.

    """

    event: str
    pid: int
    step: int
    time_s: float
    loss: float | None = None
    digest: str | None = None
    valid_loss: float | None = None


class StepLog(Callback):
    """Appends a line for every step.

    Args:
        file: file of this group. Its folder exists.
        block_size: steps of a block.
        validate: computes the validation loss of a module, at the ends of blocks.

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
        self._write("start", trainer, digest=digest_of(pl_module))

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
        digest = digest_of(pl_module)
        self._write("block", trainer, loss=loss, digest=digest, valid_loss=valid_loss)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write("end", trainer, digest=digest_of(pl_module))

    def _write(self, event: str, trainer: pl.Trainer, **values: Any) -> None:
        line = Line(event, os.getpid(), trainer.global_step, time.monotonic(), **values)
        # One write, so that a kill leaves a whole line or the start of one.
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, (json.dumps(asdict(line)) + "\n").encode())
        os.close(handle)


def digest_of(module: torch.nn.Module) -> str:
    """Digest of all parameters and buffers, equal only if every bit is."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def read_log(file: Path) -> list[Line]:
    """All whole lines until now. Empty if there is no file yet."""
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [Line(**json.loads(line)) for line in lines if line.endswith("\n")]


def last_line(file: Path) -> Line | None:
    """The last whole line of a log that may be long."""
    if not file.exists():
        return None
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - _LONGEST))
        whole = log.read().decode().split("\n")[:-1]
    return Line(**json.loads(whole[-1])) if whole else None
