"""Resumes a saved run: exactly with the same groups and settings, or else with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.reached import reach
from lightning_hier.strategies.checkpoints.changed_world import (
    resume_elsewhere,
    take_residuals,
    what_changes,
)
from lightning_hier.strategies.checkpoints.rank_states import kinds
from lightning_hier.strategies.checkpoints.resuming import SavedRun
from lightning_hier.strategies.fit_session import FitSession


def resume(saved: SavedRun, checkpoint: Mapping[str, Any], session: FitSession) -> None:
    """Load the state of all ranks. A collective of the world: every rank must call it.

    Args:
        saved: files beside the checkpoint, which are complete.
        checkpoint: as Lightning has read it.
        session: of the present run.

    """
    own = kinds(session)
    # If no training is left, the module keeps its present values: the result of ``fit``.
    with session.training.synchroniser.local.loading():
        if saved.goes_on(session.worker_layout.sizes, own):
            _resume_exactly(saved, session, own)
        else:
            _resume_elsewhere(saved, checkpoint, session, own)


def _resume_exactly(saved: SavedRun, session: FitSession, own: Mapping[str, Any]) -> None:
    training = session.training
    state = training.state
    trained = session.worker.begun
    session.rewind()
    state.load_steps(saved.section)
    if trained:
        session.wrap()  # as at the start of a run, with the buckets of that
    _wrap_trained(saved, session)
    group = _group(session, 0)
    first, of_group = saved.of_rank(session.numbers[0]), saved.of_group(group)
    order = [state.parameters[name] for name in saved.section["ready_order"]]
    session.reduction.rehearse(session.trainer.strategy.model, order)
    state.load(saved.section, of_group, first, saved.shares_for(group, own))
    training.averaged_weights.load(of_group["averages"], first["averages"])
    if first["precision"]:
        session.trainer.precision_plugin.load_state_dict(first["precision"])
    _load_workers(saved, session, first)
    rank_zero_info("Resuming where the run was saved, with the state of every rank.")


def _load_workers(saved: SavedRun, session: FitSession, first: Mapping[str, Any]) -> None:
    """Load the state of each worker of this rank; its model is in the module meanwhile."""
    state, schedule = session.training.state, session.training.schedule
    if not session.warming:
        schedule.models.open()
    random, gradients = [], []
    for workers in schedule.each():
        for number in workers:
            rank = saved.of_rank(session.numbers[number]) if number else dict(first)
            if number == workers[0] and number:
                state.load_local(saved.of_group(_group(session, number)), rank)
            state.load_worker(number, rank)
            random.append(rank["random"])
            gradients.append(rank["gradients"])
    session.position.load(random)

    def set_gradients() -> None:
        for workers in schedule.each():
            for number in workers:
                with session.accumulated(workers, number):
                    reach(state.parameters[name] for name in gradients[number])
                    state.set_gradients(gradients[number])

    # When training starts: Lightning empties the gradients before it.
    session.waiting = gradients
    session.on_start.append(set_gradients)


def _resume_elsewhere(
    saved: SavedRun, checkpoint: Mapping[str, Any], session: FitSession, own: Mapping[str, Any]
) -> None:
    training, settings = session.training, session.settings
    state = training.state
    state.load_steps(saved.section)
    _wrap_trained(saved, session)
    opens = settings.block_sync is not None and not training.synchroniser.warming
    resume_elsewhere(saved, checkpoint, state, opens_blocks=opens)
    # A group of one virtual worker has no residuals, and no DDP to add those of others.
    alone = len(session.workers) > 1 and session.worker_layout.sizes[0] == 1
    compresses = isinstance(settings.gradient_sync, GTC) and not alone
    if compresses:
        memories = dict(
            zip(session.numbers, [worker.memory for worker in session.workers], strict=True)
        )
        take_residuals(saved, state, memories, session.worker_layout.world_size)
    layout = session.worker_layout
    rank_zero_warn(what_changes(saved, layout, own, keeps_residuals=compresses))


def _group(session: FitSession, number: int) -> int:
    """Return the group of a worker of this rank."""
    return session.worker_layout.coordinates(session.numbers[number])[1]


def _wrap_trained(saved: SavedRun, session: FitSession) -> None:
    """Wrap the module with the parameters that had been unfrozen when the run was saved.

    On a resume ``BaseFinetuning``, or the module itself, freezes all of them again, and may not
    unfreeze those of earlier epochs.
    """
    session.training.state.thaw(saved.section)
    session.wrap_if_changed()
