"""Resumes a saved run: exactly with the same groups and settings, otherwise with a warning.

With other groups of ranks or another synchronisation, the current block ends where the checkpoint
was saved: the global model is that of the file, with the global update that led to it. Residuals
are redistributed such that their mean gradient is kept: with N ranks before and N' now, rank k gets
``N'/N`` times the residuals of ranks k, k + N', ..., hence ``sum(r') / N' = sum(r) / N``. Residuals
of gradients and of updates are not exchanged for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook
from lightning_hier.loop.outer_state import JoinedParts, outer_states
from lightning_hier.strategies.checkpoints.run_state import outer_of
from lightning_hier.strategies.checkpoints.saved_run import SavedRun

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


def resume(saved: SavedRun, checkpoint: Mapping[str, Any], session: FitSession) -> None:
    """Load the state of all ranks. A collective of the world: every rank must call it.

    Args:
        saved: complete files next to the checkpoint.
        checkpoint: checkpoint that Lightning has loaded.
        session: session of the current run.

    Raises:
        ValueError: on every rank, if the module lacks parameters of the saved run.

    """
    state = session.state
    missing = [name for name in saved.section["trainable"] if name not in state.parameters]
    if missing:
        raise ValueError(
            f"the module has no parameter {missing[0]!r}, which the saved run has trained "
            f"({len(missing)} of {len(saved.section['trainable'])} are missing): resume with the "
            "module that was saved, in which the same layers are wrapped by torch.compile(layer) "
            "or activation checkpointing. layer.compile() and torch.utils.checkpoint keep names"
        )
    exactly = state.continues(saved.section)
    session.synchroniser.trained.note_frozen()  # Lightning has loaded them
    # If no training is left, the module keeps its values, which are the result of ``fit``.
    with session.synchroniser.evaluation.loading():
        trained = exactly and session.worker.begun
        if exactly:
            session.synchroniser.rewind()
        state.load_steps(saved.section)
        if trained:
            session.wrap()  # with the initial buckets, as at the start of a run
        # When a run resumes, ``BaseFinetuning`` or the module freezes all parameters again, and
        # may not unfreeze those of earlier epochs.
        state.thaw(saved.section)
        session.wrap_if_changed()
        if exactly:
            _resume_exactly(saved, session)
        else:
            _resume_elsewhere(saved, checkpoint, session)
        # A group of one rank uses DDP to return the residuals that were loaded.
        session.wrap_if_changed()


def _resume_exactly(saved: SavedRun, session: FitSession) -> None:
    state, rank = session.state, session.communicators.world.position
    position, _ = session.communicators.layout.coordinates(rank)
    order = [state.parameters[name] for name in saved.section["ready_order"]]
    # The buckets of the saved run, because they decide how sums of gradients are rounded.
    session.reduction.rehearse(order)
    with saved.loading(rank, session.communicators.device):
        own = saved.of_rank(rank)
        # The first rank of each group has saved the local model of all, except if it is divided.
        model = (own if "local_model" in own else saved.of_rank(rank - position))["local_model"]
        state.load(saved.section, model, own)
        session.averages.load(model["averages"], own["averages"])
        if own["precision"]:
            session.trainer.precision_plugin.load_state_dict(own["precision"])
        session.position.load(saved.section["loops"], own["random"], _lost(session))
        session.accumulated_gradients = own["gradients"]


def _lost(session: FitSession) -> list[str]:
    sync = session.settings.gradient_sync
    if not isinstance(sync, CommHook) or sync.state is None:
        return []
    return ["the state of a CommHook is not saved: use GTC, or a hook without a state"]


@torch.no_grad()
def _resume_elsewhere(saved: SavedRun, checkpoint: Mapping[str, Any], session: FitSession) -> None:
    """Start from the models, updates, optimizers and residuals of a run with other groups.

    A collective of every group. The module must hold the global model of the checkpoint.

    Args:
        saved: saved run, whose counts of steps the current run has taken over.
        checkpoint: checkpoint of the run, with the optimizers of rank 0.
        session: session of the current run.

    """
    state = session.state
    lost: list[str] = []
    session.position.load(saved.section["loops"])
    kinds, now = saved.section["kinds"], state.kinds()
    before, divided = kinds["mesh"], now["mesh"]
    if not divided:  # Lightning has already loaded optimizers of a divided module
        state.load_optimizers(checkpoint["optimizer_states"])
    if isinstance(session.settings.gradient_sync, GTC) and kinds["of"] in (None, now["of"]):
        _take_residuals(saved, session)
        ranks = session.communicators.world.size
        lost.append(f"the residuals of {saved.ranks} ranks were redistributed to {ranks}")
    elif kinds["gradient_sync"] == GTC.__name__:
        lost.append("residuals are lost")
    outer: Iterator[Any] | None = _outer_states(saved, session)
    if (before is None) != (divided is None):  # parts of flat and of whole tensors
        outer = None
        lost.append("the state of outer steps, such as block momentum, is lost")
    lost.append("local optimizers start from the state of rank 0")
    lost.append("random states and the order of the data start from the beginning")
    text = state.what_changes(saved.section, lost)
    state.load_elsewhere(saved.section, outer)
    state.subtract_residuals()
    rank_zero_warn(text)


def _outer_states(saved: SavedRun, session: FitSession) -> Iterator[dict[str, Any]]:
    """State of the outer steps of each block by parameter, from the files of the first group."""
    joined: list[JoinedParts] = []
    for rank in range(saved.sizes[0]):
        blocks = [*outer_of(saved.of_rank(rank))]
        joined = joined or [JoinedParts(session.state.parameters) for _ in blocks]
        for parts, buckets in zip(joined, blocks, strict=True):
            for bucket in buckets:
                parts.add(bucket)
    for parts, buckets in zip(joined, blocks, strict=True):
        yield outer_states(buckets, parts.vectors)


def _take_residuals(saved: SavedRun, session: FitSession) -> None:
    """Give this rank its part of the saved residuals. Reads the files of their ranks."""
    world = session.communicators.world
    first = saved.of_rank(0)["memory"]
    sums = {name: torch.zeros_like(residual) for name, residual in first["residuals"].items()}
    for before in range(world.position, saved.ranks, world.size):
        residuals = (first if before == 0 else saved.of_rank(before)["memory"])["residuals"]
        for name, residual in residuals.items():
            sums[name].add_(residual, alpha=world.size / saved.ranks)
    # The ranks of a group need the same thresholds, which differ between saved groups.
    memory = {"residuals": sums, "thresholds": first["thresholds"]}
    session.worker.memory.load(memory, session.state.parameters)
