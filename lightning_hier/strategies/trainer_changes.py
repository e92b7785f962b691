"""Changes to a Trainer: methods and callbacks, undone after ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class TrainerChanges:
    """Changes to a Trainer while it fits. :meth:`close` undoes them in reverse order.

    Args:
        trainer: Trainer that is about to fit.

    Attributes:
        trainer: the Trainer.

    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self._undo = ExitStack()

    def replace(self, path: str, method: Callable[..., Any]) -> None:
        """Replace a method.

        Args:
            path: path of the method, below the Trainer.
            method: replacement, which receives the current method as its first argument.

        """
        *parents, name = path.split(".")
        holder: Any = self.trainer
        for parent in parents:
            holder = getattr(holder, parent)
        # On the instance, so that other Trainers of the process keep their methods.
        setattr(holder, name, partial(method, getattr(holder, name)))
        # Deleting the attribute of the instance uncovers the method of the class.
        self._undo.callback(holder.__dict__.pop, name, None)

    def surround_callbacks(self, first: Sequence[Callback], last: Sequence[Callback]) -> None:
        """Put callbacks before and after those of the user."""
        trainer: Any = self.trainer
        trainer.callbacks = [*first, *trainer.callbacks, *last]
        self._undo.callback(self._without, {*first, *last})

    def on_close(self, undo: Callable[[], object]) -> None:
        """Make :meth:`close` call ``undo``."""
        self._undo.callback(undo)

    def close(self) -> None:
        """Undo all changes."""
        self._undo.close()

    def _without(self, ours: set[Callback]) -> None:
        trainer: Any = self.trainer
        # Not the old list, which lacks callbacks that were added during the fit.
        trainer.callbacks = [callback for callback in trainer.callbacks if callback not in ours]
