"""The moment when a rank's batches of an epoch end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.joining import Joining


class EndOfData(Callback):
    """Notes it for errors, or has this rank join the others until all have come there.

    The first of all callbacks: what follows at an epoch's end, validation, checkpoints and other
    callbacks, finds all ranks in the same place.
    """

    def __init__(
        self, health: HealthExchange, joining: Joining | None, obey: Callable[[], None]
    ) -> None:
        """Tell ``health``; join by ``joining`` if there is one; ``obey`` acts on a signal."""
        self._health = health
        self._joining = joining
        self._obey = obey
        self._met = False

    def on_train_batch_start(self, *_: Any) -> None:
        """There is a batch."""
        self._met = False

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Meet the others after the last one."""
        if trainer.is_last_batch or _batches(trainer) == trainer.num_training_batches:
            self._meet(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Meet them if the epoch has ended otherwise, without a batch or by the user's hook."""
        if not self._met:
            self._meet(trainer)

    def _meet(self, trainer: pl.Trainer) -> None:
        self._met = True
        self._health.batches = _batches(trainer)
        if self._joining is None:
            return
        while not self._joining.run():
            self._obey()
            if trainer.received_sigterm:
                # The others leave in the middle of their epoch, where Lightning checks for it.
                raise SIGTERMException
        if self._health.signalled:
            self._obey()


def _batches(trainer: pl.Trainer) -> int:
    """Batches of this epoch so far."""
    return int(trainer.fit_loop.epoch_loop.batch_idx) + 1
