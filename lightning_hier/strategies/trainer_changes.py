"""Changes to a Trainer: methods and callbacks, undone after ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

REPLACED: Mapping[str, str] = {
    "_checkpoint_connector.resume_start": "elastic: takes the state of a group that trains",
    "_signal_connector._sigterm_notifier_fn": "sigterm: all ranks stop at one synchronisation",
    "_signal_connector._slurm_sigusr_handler_fn": "sigterm: all ranks save and requeue together",
    "fit_loop._load_combined_loader_states": "data_position: each rank restores its own loaders",
    "fit_loop.epoch_loop._broadcast_sigterm_tensor": "sigterm: no broadcast at every batch",
    "fit_loop.epoch_loop._get_monitor_value": "data_position: metrics that schedulers follow",
    "fit_loop.epoch_loop._on_before_fetch": "data_position: loaders that read a batch ahead",
    "fit_loop.epoch_loop.on_run_start": "data_position: resumes exactly within an epoch",
    "fit_loop.epoch_loop.reset": "data_position: resumes exactly within an epoch",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end": "data_position: as below",
    "fit_loop.epoch_loop.val_loop.run": "data_position: validation keeps random states",
    "save_checkpoint": "lifecycle: no save after an error; sigterm: complete saves to requeue from",
}
"""All methods that are replaced, below the Trainer, with the module that does it, and what for."""


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
            path: path of the method, one of :data:`REPLACED`.
            method: replacement, which receives the current method as its first argument.

        """
        assert path in REPLACED, path
        *parents, name = path.split(".")
        holder: Any = self.trainer
        for parent in parents:
            holder = getattr(holder, parent)
        # On the instance, so that other Trainers of the process keep their methods. Deleting it
        # uncovers the method of the class, unless another change has replaced it before.
        before = vars(holder).get(name)
        setattr(holder, name, partial(method, getattr(holder, name)))
        if before is None:
            self._undo.callback(vars(holder).pop, name, None)
        else:
            self._undo.callback(setattr, holder, name, before)

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
