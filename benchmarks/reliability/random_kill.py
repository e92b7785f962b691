"""Callback that kills a random rank by SIGKILL, in a step or during a save."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from benchmarks.reliability.event_log import read, write

# Largest number of steps from a start to the kill: more than between two checkpoints, so that steps
# are lost.
MOST_STEPS = 9
_LONGEST_SAVE_S = 0.02


class RandomKill(Callback):
    """Kill a random rank at a random time after each start of the job.

    All ranks draw the same numbers, and none is killed before all of them train.

    Args:
        folder: folder of the event log, to which a kill is written first.
        seed: seed of the random numbers.
        most: number of kills in total.

    """

    def __init__(self, folder: Path, seed: int, most: int) -> None:
        kills = sum(entry.event == "kill" for entry in read(folder))
        draw = random.Random(1000 * seed + kills)
        self._folder = folder
        self._complete = kills >= most
        self._rank = draw.randrange(int(os.environ["WORLD_SIZE"]))
        self._steps_left = draw.randint(1, MOST_STEPS)
        self._in_save = draw.random() < 0.5
        self._delay_s = draw.uniform(0.0, _LONGEST_SAVE_S)

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        self._steps_left -= 1
        if self._steps_left <= 0 and self._is_chosen(trainer) and not self._in_save:
            self._kill(trainer, "step")

    def on_save_checkpoint(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        if self._steps_left <= 0 and self._is_chosen(trainer) and self._in_save:
            self._in_save = False
            threading.Thread(target=self._kill_later, args=(trainer,), daemon=True).start()

    def _is_chosen(self, trainer: pl.Trainer) -> bool:
        return not self._complete and trainer.global_rank == self._rank

    def _kill_later(self, trainer: pl.Trainer) -> None:
        time.sleep(self._delay_s)
        self._kill(trainer, "save")

    def _kill(self, trainer: pl.Trainer, where: str) -> None:
        write(self._folder, "kill", trainer, where)
        os.kill(os.getpid(), signal.SIGKILL)
