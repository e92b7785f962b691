"""The only place that replaces methods of a Trainer, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.strategies.private_names import OF_TRAINER


class TrainerChanges:
    """Changes to a Trainer while it fits. :meth:`close` takes all of them back, the last first.

    Args:
        trainer: about to fit.

    Attributes:
        trainer: the Trainer.

    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self._undo = ExitStack()

    def replace(self, path: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method.

        Args:
            path: of the method, below the Trainer. It must be listed as replaced in
                :data:`~lightning_hier.strategies.private_names.OF_TRAINER`, which is checked
                before training.
            make: makes the new method of the present one.

        """
        if not OF_TRAINER[path].startswith("replaced"):
            raise ValueError(f"Trainer.{path} is not listed as a method that is replaced")
        *parents, name = path.split(".")
        holder: Any = self.trainer
        for parent in parents:
            holder = getattr(holder, parent)
        setattr(holder, name, make(getattr(holder, name)))
        # The method of the class becomes visible again.
        self._undo.callback(holder.__dict__.pop, name, None)

    def surround_callbacks(self, first: Sequence[Callback], last: Sequence[Callback]) -> None:
        """Put callbacks before and after those of the user."""
        trainer: Any = self.trainer
        trainer.callbacks = [*first, *trainer.callbacks, *last]
        self._undo.callback(self._without, {*first, *last})

    def on_close(self, undo: Callable[[], object]) -> None:
        """Have :meth:`close` call ``undo``."""
        self._undo.callback(undo)

    def close(self) -> None:
        """Take all changes back."""
        self._undo.close()

    def _without(self, ours: set[Callback]) -> None:
        trainer: Any = self.trainer
        trainer.callbacks = [own for own in trainer.callbacks if own not in ours]
