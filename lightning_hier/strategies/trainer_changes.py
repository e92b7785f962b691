"""Changes to a Trainer: methods, callbacks and progress bar, undone after ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.callbacks.progress import Rates, place_in_block
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import Worker
from lightning_hier.strategies.private_names import OF_TRAINER


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
            path: path of the method, below the Trainer. It must be listed as replaced in
                :data:`~lightning_hier.strategies.private_names.OF_TRAINER`, which is checked before
                training.
            method: replacement, which receives the current method as its first argument.

        """
        if not OF_TRAINER[path].startswith("replaced"):
            raise ValueError(f"Trainer.{path} is not listed as replaced in private_names.py")
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

    def show_in_progress_bar(
        self,
        traffic: Traffic,
        worker: Worker | None = None,
        block_size: int | None = None,
        warmup_steps: int = 0,
    ) -> None:
        """Add the values of :class:`Rates` to the Trainer's progress bar, if there is one.

        They follow the user's metrics, which take precedence if names are equal, and are not
        logged.

        Args:
            traffic: traffic of this rank.
            worker: worker of this rank, if there are blocks.
            block_size: as in :func:`~lightning_hier.callbacks.progress.place_in_block`.
            warmup_steps: as ``block_size``.

        """
        bar = self.trainer.progress_bar_callback
        if bar is None:
            return
        original, rates = bar.get_metrics, Rates(traffic)

        # A method and not a subclass, because the user may have chosen any progress bar.
        def get_metrics(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Any:
            place = "" if worker is None else place_in_block(worker, block_size, warmup_steps)
            ours = ({"block": place} if place else {}) | rates.read()
            theirs = original(trainer, pl_module)
            return {**theirs, **{name: ours[name] for name in ours if name not in theirs}}

        bar.get_metrics = get_metrics  # type: ignore[method-assign]
        self._undo.callback(bar.__dict__.pop, "get_metrics", None)

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
