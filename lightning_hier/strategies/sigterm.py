"""Coordinates all ranks on SIGTERM and on SLURM's requeue signal: save, then stop or continue.

Lightning's training loop broadcasts a flag over the world before each batch, and its signal handler
broadcasts as well. Between two synchronisations no byte may leave a group, so a rank only records
the signal. All ranks learn of it at their next synchronisation and act at the end of that batch. A
save is a collective, so it cannot be made in a signal handler, where Lightning makes the save that
precedes a requeue.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.callbacks.packages import both
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.strategies.checkpoints.atomic_io import finish_writing
from lightning_hier.strategies.trainer_changes import TrainerChanges

_STOP, _REQUEUE = "stop", "requeue"


class QuietTermination(Callback):
    """Replaces the broadcasts and handlers of a Trainer, and acts at the end of a batch.

    Args:
        changes: changes to the Trainer that is about to fit.
        health: exchange of health reports in which this rank reports a signal. None: it acts alone.

    """

    def __init__(self, changes: TrainerChanges, health: HealthExchange | None = None) -> None:
        self._changes = changes
        self._trainer = trainer = changes.trainer
        self._health = health
        self._connector: Any = trainer._signal_connector
        # Sets, because a handler may run between any two operations, and set.add is atomic.
        self._received: set[str] = set()
        self._to_do: set[str] = set()
        self.install()

    def install(self) -> None:
        """Replace the handlers. Lightning registers them later and therefore uses these."""
        replace = self._changes.replace
        replace("fit_loop.epoch_loop._broadcast_sigterm_tensor", lambda _: None)
        replace("_signal_connector._sigterm_notifier_fn", self._note_sigterm)
        replace("_signal_connector._slurm_sigusr_handler_fn", self._note_requeue)

    def on_train_batch_end(self, *_: Any) -> None:
        """Save, then requeue or let Lightning stop, if a rank has reported a signal.

        Then it is a collective of the world: every rank must call it after the same step.
        """
        if self._health is not None and self._health.signalled:
            self._health.clear_signal()
            reported = set(self._received)
            self._received -= reported  # a handler may have added another one in the meantime
            for received in gather_json(sorted(reported), self._trainer.strategy.root_device):
                self._to_do |= set(received)
        if _REQUEUE in self._to_do:
            self._to_do.remove(_REQUEUE)
            requeue(self._trainer)
        if _STOP in self._to_do:
            self._to_do.remove(_STOP)
            # Before the flag, with which Lightning's loop ends at the end of this batch.
            _save_before_stop(self._trainer)
            self._connector.received_sigterm = True

    def _note_sigterm(self, _: object, signum: int, frame: FrameType | None) -> None:
        # As Lightning does: the processes that this rank has launched get the signal as well.
        launcher = self._trainer.strategy.launcher
        if launcher is not None:
            launcher.kill(signum)
        if self._health is None:
            self._connector.received_sigterm = True
        else:
            self._received.add(_STOP)
            self._health.note_signal()

    def _note_requeue(self, _: object, signum: int, frame: FrameType | None) -> None:
        if self._health is None:
            self._to_do.add(_REQUEUE)
        else:
            self._received.add(_REQUEUE)
            self._health.note_signal()


def _save_before_stop(trainer: pl.Trainer) -> None:
    """Make every ModelCheckpoint save, unless it has just saved. A collective of the world."""
    callbacks = trainer.checkpoint_callbacks
    savers = [callback for callback in callbacks if isinstance(callback, both(ModelCheckpoint))]
    if not savers:
        rank_zero_warn(
            "SIGTERM ends this run without a checkpoint, because the Trainer has no ModelCheckpoint"
        )
    for saver in savers:
        # By default, ModelCheckpoint does not save on exceptions. Its hook also knows whether it
        # has saved this step, and is the only one that saves at any step.
        chosen, saver.save_on_exception = saver.save_on_exception, True
        try:
            saver.on_exception(trainer, trainer.lightning_module, SIGTERMException("SIGTERM"))
        finally:
            saver.save_on_exception = chosen


_LIGHTNINGS = "hpc_ckpt_"
_OURS = "requeue_"


def requeue(trainer: pl.Trainer) -> None:
    """Save the checkpoint from which Lightning resumes the job, and ask SLURM to requeue the job.

    A collective of the world: every rank must call it at the same step.

    Lightning resumes from the file ``hpc_ckpt_N.ckpt`` with the highest number in
    ``default_root_dir``. An incomplete file of this name would end the resumed job with an error.
    The save therefore has another name, and gets Lightning's name as a link when it is complete.
    """
    connector: Any = trainer._signal_connector
    strategy: Any = trainer.strategy
    environment = strategy.cluster_environment
    signal = getattr(environment, "requeue_signal", None)  # only for Lightning's line in the log
    changes = TrainerChanges(trainer)
    changes.replace("save_checkpoint", partial(_save_and_link, trainer))
    try:
        # The method of the class, because that of the instance only records the signal.
        type(connector)._slurm_sigusr_handler_fn(connector, signal, None)
    finally:
        changes.close()


def _save_and_link(
    trainer: pl.Trainer, save: Callable[..., None], path: str | Path, *args: Any, **kwargs: Any
) -> None:
    filesystem, local = url_to_fs(str(path))
    if not isinstance(filesystem, LocalFileSystem):  # object stores have no links
        save(path, *args, **kwargs)
        return
    link = Path(local)
    target = link.with_name(link.name.replace(_LIGHTNINGS, _OURS))
    save(target, *args, **kwargs)
    # An asynchronous writer may not have started. The link must not precede the file.
    finish_writing(trainer.strategy.checkpoint_io)
    # Part of the save. Ranks of parameter servers save independently, without this barrier.
    trainer.strategy.barrier("Trainer.save_checkpoint")
    if trainer.is_global_zero and target.exists():  # otherwise its writer reports the failure
        os.symlink(target.name, link)
