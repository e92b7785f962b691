"""Position of a run in Lightning's loops: read when the run is saved, restored when it resumes.

Lightning infers from the counters in a checkpoint where it was saved. For some checkpoints it
then leaves out or repeats an epoch, its end or a validation, depending on ``max_steps`` and on the
length of the data. Here, a position is either *between two epochs* or *after a batch* of an epoch,
with what follows this batch. Everything else is set such that Lightning continues there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import GradientAccumulationScheduler

from lightning_hier.callbacks.packages import both

_WAY_OUT = (
    "Save after a step: in on_train_batch_end, in a validation, at the end of an epoch, or by "
    "ModelCheckpoint"
)


def check_after_step(trainer: Any) -> None:
    """Raise RuntimeError if training is within a step, or an epoch is about to start.

    The gradients of a step, and what hooks do at the start of an epoch, are not in a checkpoint.
    """
    fit_loop = trainer.fit_loop
    epochs, batches = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress.current
    if batches.ready != batches.processed:
        raise RuntimeError(
            f"a checkpoint can't be saved within a step, here that of batch {batches.ready} of "
            f"epoch {epochs.processed}: a run that resumes would lose what the step has already "
            f"computed. {_WAY_OUT}"
        )
    if epochs.ready != epochs.started:
        raise RuntimeError(
            f"a checkpoint can't be saved in on_train_epoch_start, here of epoch {epochs.started}: "
            f"a run that resumes would call these hooks a second time. {_WAY_OUT}"
        )


def is_after_step(trainer: Any) -> bool:
    """Whether a checkpoint may be saved now, see :func:`check_after_step`."""
    try:
        check_after_step(trainer)
    except RuntimeError:
        return False
    return True


def loop_position(trainer: Any) -> dict[str, Any]:
    """Position of a run after a step, see :func:`check_after_step`.

    Returns:
        ``epochs``: completed epochs. ``batches``: batches of the next epoch that were used, 0
        between epochs. ``last``: whether the last batch of this epoch was used, so that only the
        end of the epoch follows. ``counts``: whether Lightning's end of the batch follows, in which
        it validates, and ``validates``: whether this validation is not complete. ``hook``: whether
        the module's ``on_train_batch_end`` follows, which Lightning calls behind those of
        callbacks. ``plateaus``: whether the schedulers that follow a metric are stepped next, at
        the end of an epoch.

    """
    fit_loop = trainer.fit_loop
    epoch_loop, epochs = fit_loop.epoch_loop, fit_loop.epoch_progress.current
    batches, validated = epoch_loop.batch_progress.current, epoch_loop.val_loop.batch_progress
    # The condition by which Lightning ends an epoch.
    last = batches.ready == trainer.num_training_batches or epoch_loop.batch_progress.is_last_batch
    in_epoch = epochs.processed < epochs.started
    # If max_steps ends a run within an epoch, Lightning counts this epoch as complete.
    after_batch = batches.ready > 0 and (in_epoch or not last)
    in_hooks = batches.completed < batches.ready  # of on_train_batch_end
    counts = after_batch and in_epoch and (in_hooks or trainer.validating)
    complete = validated.is_last_batch and validated.current.ready == validated.current.completed
    return {
        "epochs": epochs.started - 1 if after_batch else epochs.processed,
        "batches": batches.ready if after_batch else 0,
        "last": after_batch and last,
        "counts": counts,
        "hook": after_batch and in_epoch and in_hooks,
        "validates": counts and not (trainer.validating and complete),
        "plateaus": not after_batch and epochs.completed < epochs.processed,
    }


def restore_loops(trainer: Any, position: Mapping[str, Any]) -> None:
    """Set the counters that Lightning has loaded to a position, before its loop runs."""
    fit_loop = trainer.fit_loop
    batches, epochs = position["batches"], position["epochs"]
    started = epochs + 1 if batches else epochs
    for counter in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
        _set(counter, started, epochs)
    progress = fit_loop.epoch_loop.batch_progress
    _set(progress.total, progress.total.ready, progress.total.ready)
    _set(progress.current, batches, batches)
    progress.is_last_batch = position["last"]
    # Lightning restarts an epoch after one of its batches, and otherwise starts one.
    _set_restarting(trainer, bool(batches))


def finish_epoch(trainer: Any, position: Mapping[str, Any]) -> None:
    """Step the schedulers that follow a metric, if they were next when the run was saved.

    Lightning would leave it out. Call it when training starts.
    """
    if position["plateaus"]:
        fit_loop = trainer.fit_loop
        current = fit_loop.epoch_progress.current
        current.completed -= 1  # the epoch by which their frequency is counted
        fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        current.completed += 1


def finish_batch(trainer: Any, position: Mapping[str, Any], fetcher: Any) -> None:
    """Do what follows the batch after which the run was saved, and leave Lightning's restart.

    Call it in the epoch in which the run resumes, when its data have started.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    for callback in trainer.callbacks:
        # Lightning does not call this hook when a run resumes within an epoch.
        if isinstance(callback, both(GradientAccumulationScheduler)):
            callback.on_train_epoch_start(trainer)
    _set_restarting(trainer, False)
    if position["counts"]:
        epoch_loop._skip_next_val = not position["validates"]
        epoch_loop.on_advance_end(fetcher)


def _set(counter: Any, started: int, completed: int) -> None:
    counter.ready = counter.started = started
    counter.processed = counter.completed = completed


def _set_restarting(trainer: Any, restarting: bool) -> None:
    loop = trainer.fit_loop
    loop._restarting = restarting  # its setter would keep True in any run with max_steps
    loop.epoch_loop.restarting = restarting
    loop.epoch_loop.val_loop.restarting = False  # a validation starts from its beginning
