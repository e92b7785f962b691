"""The state of a run that is saved beside a checkpoint, and the settings that it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_hier.strategies.checkpoints.rank_files import Part
from lightning_hier.strategies.checkpoints.run_state import State
from lightning_hier.strategies.fit_session import FitSession
from lightning_hier.strategies.settings import numbers


def kinds(session: FitSession) -> dict[str, Any]:
    """Return the settings that a run must share with a saved one to resume exactly."""
    settings = session.settings
    sync = settings.block_sync
    quantised = sync is not None and sync.across_dtype != "same"
    return {
        "gradient_sync": type(settings.gradient_sync).__name__,
        "block_sync": type(sync).__name__,
        "overlap": None if sync is None else sync.overlap,
        "across_dtype": None if sync is None else sync.across_dtype,
        # The error feedback of quantisation lies with the ranks that exchange between hosts.
        "inter_host_ranks": session.communicators.route.inter_host_ranks if quantised else None,
        # The optimizer state that is averaged is in the same shards as the model.
        "optimizer_state": "averaged" if sync is not None and sync.averages_state else "local",
        "sharded": session.training.synchroniser.placement.sharded,
        "warmup_steps": settings.warmup_steps,
        # Each of these ranks has a shard of the global model.
        "ranks_per_group": session.communicators.layout.sizes[0],
    }


def shared_state(session: FitSession) -> dict[str, Any]:
    """Return the small state that is the same on all ranks."""
    settings, state = session.settings, session.training.state
    return {
        **state.shared(),
        "kinds": kinds(session),
        "numbers": numbers(int(settings.warmup_steps), settings.gradient_sync, settings.block_sync),
        "ready_order": [state.names[own] for own in session.reduction.ready_order],
    }


def states(session: FitSession) -> Iterator[tuple[Part, int, State]]:
    """Yield the states that this rank saves, each with its local model in the module."""
    schedule = session.training.schedule
    with schedule.models.opened():
        for workers in schedule.each():
            first = session.numbers[workers[0]]
            position, group = session.worker_layout.coordinates(first)
            for number in workers:
                with session.accumulated(workers, number):
                    yield "rank", session.numbers[number], _of_worker(session, number)
            if position == 0:
                yield "group", group, _of_group(session)


def _of_group(session: FitSession) -> State:
    training = session.training
    return {**training.state.of_group(), "averages": training.averaged_weights.of_group()}


def _of_worker(session: FitSession, number: int) -> State:
    training, trainer = session.training, session.trainer
    accumulates = not session.closed and trainer.fit_loop.epoch_loop._should_accumulate()
    gradients = training.state.gradients() if accumulates else {}
    with_blocks = number % training.schedule.per_model == 0
    return {
        **training.state.of_worker(number, with_blocks=with_blocks),
        "averages": training.averaged_weights.of_rank(),
        "random": session.position.state(number),
        "precision": trainer.precision_plugin.state_dict(),
        "gradients": session.waiting[number] if session.waiting else gradients,
    }
