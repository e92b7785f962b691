"""What a job writes down about itself, for those who disturb it and count the losses."""

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

_NAME = "diary.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line of a diary.

    Attributes:
        event: ``start`` of training, ``step``, or ``kill``.
        rank: who wrote it.
        pid: of its process.
        world: number of ranks.
        steps: taken until then, since the beginning of the run.
        time_s: by the machine's clock that no one sets.
        where: for a kill, ``step`` or ``save``.

    """

    event: str
    rank: int
    pid: int
    world: int
    steps: int
    time_s: float
    where: str = ""


class Diary(Callback):
    """Writes down when each rank starts to train, and each step of rank 0."""

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
    """Append an entry: one write, so that ranks do not mix theirs, and nothing is left behind."""
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
    """All entries until now, in the order in which they were written."""
    return list(_entries(folder / _NAME))


def _entries(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Entry(**json.loads(line))
