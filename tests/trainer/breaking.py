"""Modules that break on some ranks at a given batch, and modules that disturb their ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.trainer.fitting import Fitted, Net, fitted, this_rank
from tests.waiting import leave_mark, wait_for_marks

NAN, INF = float("nan"), float("inf")


class Breaks(Net):
    """Sets one element of a tensor, or multiplies the loss, at one batch on some ranks."""

    def __init__(self, batch: int, ranks: tuple[int, ...], where: str, value: float = NAN) -> None:
        super().__init__(batchnorm=True)
        self.batch, self.ranks, self.where, self.value = batch, ranks, where, value

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._now(batch_idx) and self.where != "loss":
            with torch.no_grad():
                self.state_dict()[self.where].view(-1)[0] = self.value

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss * self.value if self._now(batch_idx) and self.where == "loss" else loss

    def _now(self, batch_idx: int) -> bool:
        return batch_idx == self.batch and this_rank() in self.ranks


class Disturbed(Net):
    """At given pairs of rank and step, a rank dies, raises, sleeps, or hangs until the others end.

    A late rank of PSP-SGD may skip the step. Then it is disturbed at its next one.
    Ranks leave marks in the folder at their end (`fitted_and_marked`). Every step takes `step_s`
    seconds. Otherwise, the other ranks would finish before they detect the disturbance.
    """

    def __init__(
        self, disturbances: dict[tuple[int, int], str], folder: Path | None = None, *, step_s: float
    ) -> None:
        super().__init__(batchnorm=True)
        self.disturbances, self.folder, self.step_s = disturbances, folder, step_s

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        disturbance = self._next_disturbance()
        if disturbance == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if disturbance == "raises":
            raise ValueError("this rank's own mistake")
        if disturbance == "sleeps":
            time.sleep(1.5)
        if disturbance == "hangs" and self.folder is not None:
            others = {*range(self.trainer.world_size)} - {this_rank()}
            wait_for_marks(self.folder, *map(str, others))
        time.sleep(self.step_s)
        return self.loss(batch)

    def _next_disturbance(self) -> str | None:
        for rank, step in sorted(self.disturbances):
            if rank == this_rank() and step <= self.global_step:
                return self.disturbances.pop((rank, step))
        return None


def fitted_and_marked(folder: Path, *args: Any, **settings: Any) -> Fitted:
    """Call `fitted`, and leave a mark at its end, also after an error."""
    try:
        return fitted(*args, **settings)
    finally:
        leave_mark(folder, str(this_rank()))
