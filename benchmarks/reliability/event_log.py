"""Event log of a job, which gives the lost steps and the recovery time of a fault."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

_NAME = "events.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line of an event log.

    Attributes:
        event: ``start`` of training, ``step``, or ``kill``.
        rank: rank that wrote the line.
        pid: process of the rank.
        world: number of ranks.
        steps: steps since the beginning of the run.
        time_s: time on the monotonic clock of the machine.
        where: ``step`` or ``save`` for a kill, otherwise empty.

    """

    event: str
    rank: int
    pid: int
    world: int
    steps: int
    time_s: float
    where: str = ""


class EventLog(Callback):
    """Log the start of training on each rank, and each step of rank 0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        write(self._folder, "start", trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        if trainer.is_global_zero:
            write(self._folder, "step", trainer)


def write(folder: Path, event: str, trainer: pl.Trainer, where: str = "") -> None:
    """Append an entry with one system call, so that lines of different ranks do not mix."""
    entry = Entry(
        event,
        trainer.global_rank,
        os.getpid(),
        trainer.world_size,
        trainer.global_step,
        time.monotonic(),
        where,
    )
    handle = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, (json.dumps(asdict(entry)) + "\n").encode())
    os.close(handle)


def read(folder: Path) -> list[Entry]:
    """Return all complete entries, in the order in which they were written."""
    return list(_entries(folder / _NAME))


def _entries(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Entry(**json.loads(line))
