"""Resumes a saved run: exactly with the same groups and settings, otherwise with a warning.

With other groups of ranks or another synchronisation, the current block ends where the checkpoint
was saved: the global model is that of the file, with the global update that led to it. Residuals
are redistributed such that their mean gradient is kept: with N ranks before and N' now, rank k gets
``N'/N`` times the residuals of ranks k, k + N', ..., hence ``sum(r') / N' = sum(r) / N``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.strategies.checkpoints.saved_run import SavedRun, whole_blocks
from lightning_hier.strategies.checkpoints.sharded_outer_state import load_outer_states

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
    state, kinds = session.state, session.state.kinds()
    missing = [name for name in saved.section["trainable"] if name not in state.parameters]
    if missing:
        raise ValueError(
            f"the module has no parameter {missing[0]!r}, which the saved run has trained "
            f"({len(missing)} of {len(saved.section['trainable'])} are missing): resume with the "
            "module that was saved, in which the same layers are wrapped by torch.compile(layer) "
            "or activation checkpointing. layer.compile() and torch.utils.checkpoint keep names"
        )
    exactly = saved.resumes_exactly(session.communicators.layout.sizes, kinds)
    session.synchroniser.trained.note_frozen()  # Lightning has loaded them
    # If no training is left, the module keeps its values, which are the result of ``fit``.
    with session.synchroniser.local.loading():
        trained = exactly and session.worker.begun
        if exactly:
            session.rewind()
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
            _resume_elsewhere(saved, checkpoint, session, kinds)
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
def _resume_elsewhere(
    saved: SavedRun, checkpoint: Mapping[str, Any], session: FitSession, kinds: Mapping[str, Any]
) -> None:
    """Start from the models, updates, optimizers and residuals of a run with other groups.

    A collective of every group. The module must hold the global model of the checkpoint.

    Args:
        saved: saved run, whose counts of steps the current run has taken over.
        checkpoint: checkpoint of the run, with the optimizers of rank 0.
        session: session of the current run.
        kinds: settings of the current run.

    Raises:
        ValueError: the model has other tensors than the one that was saved.

    """
    state, layout = session.state, session.communicators.layout
    session.position.load(saved.section["loops"])
    # The module contains the global model, in which the interrupted block has ended.
    for count in session.worker.steps:
        count.in_block = 0
    if not kinds["mesh"]:  # Lightning has already loaded optimizers of a divided module
        state.load_optimizers(checkpoint["optimizer_states"])
    opens_blocks = session.settings.block_sync is not None and not session.synchroniser.warming
    has_blocks = saved.section["counts"] is not None and _keeps_outer_states(saved, kinds)
    if opens_blocks and has_blocks:
        _open_blocks(saved, session)
    compresses = isinstance(session.settings.gradient_sync, GTC)
    if compresses:
        _take_residuals(saved, session)
    momenta, sync = ("block_momentum", "outer_momentum"), session.settings.block_sync
    automatic = [name for name in momenta if getattr(sync, name, None) == "auto"]
    rank_zero_warn(
        what_changes(saved, layout, kinds, automatic=automatic, keeps_residuals=compresses)
    )


def _keeps_outer_states(saved: SavedRun, kinds: Mapping[str, Any]) -> bool:
    """Whether this run can divide the state of the saved outer steps as it needs it.

    If modules are divided, only a folder contains it as tensors of the whole module.
    """
    before, now = saved.section["kinds"]["mesh"], kinds["mesh"]
    if before and now:
        return "outer_states" in saved.section
    return not before and not now


def _open_blocks(saved: SavedRun, session: FitSession) -> None:
    state, section = session.state, saved.section
    blocks = state.open_blocks(section)
    if "outer_states" in section:
        placement = session.synchroniser.placement
        states = load_outer_states(section["outer_states"], state.parameters, placement, saved.path)
    else:
        states = whole_blocks(saved.blocks_of(0))
    for block, outer, counts in zip(blocks, states, saved.section["counts"], strict=True):
        block.restart(outer, state.by_parameter(counts))


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


def what_changes(
    saved: SavedRun,
    layout: RankLayout,
    kinds: Mapping[str, Any],
    *,
    automatic: Sequence[str],
    keeps_residuals: bool,
) -> str:
    """Message that lists the differences to the saved run and their consequences.

    Args:
        saved: saved run.
        layout: assignment of the current ranks to groups.
        kinds: settings of the current run.
        automatic: names of momenta that are ``"auto"``.
        keeps_residuals: whether the current run uses the saved residuals.

    """
    (devices, groups), before = layout.sizes, saved.sizes
    changes = []
    if (devices, groups) != before:
        now = f"{counted(groups, 'group')} of {counted(devices, 'rank')}"
        changes.append(f"{now} instead of {before[1]} of {before[0]}")
    changes += [
        f"{name} is {kinds.get(name)} instead of {old}"
        for name, old in saved.section["kinds"].items()
        if kinds.get(name) != old and name != "inter_host_ranks"  # it follows from the groups
    ]
    steps = max(count["in_block"] for count in saved.section["steps"])
    effects = []
    if groups != before[1]:
        effects += [f"{name}='auto' follows the number of groups" for name in automatic]
    if steps and saved.section["counts"] is not None:
        effects.append(f"the current block ended after {counted(steps, 'step')}")
    if keeps_residuals:
        effects.append(
            f"the residuals of {saved.ranks} ranks were redistributed to {layout.world_size}"
        )
    elif saved.section["kinds"]["gradient_sync"] == GTC.__name__:
        effects.append("residuals are lost")
    if saved.section["kinds"]["inter_host_ranks"] is not None:
        effects.append("the error feedback of quantised or sparse updates is lost")
    if not _keeps_outer_states(saved, kinds):
        effects.append("the state of outer steps, such as block momentum, is lost")
    effects.append("local optimizers start from the state of rank 0")
    effects.append("random states and the order of the data start from the beginning")
    text = f"Resuming with a change: {'; '.join(changes)}. Therefore {', '.join(effects)}."
    if devices != before[0] and layout.world_size == saved.ranks:
        # "node" counts the ranks of a host, which increase with fewer hosts.
        text += f" The number of ranks is unchanged: group_size={before[0]} keeps their groups."
    return text
