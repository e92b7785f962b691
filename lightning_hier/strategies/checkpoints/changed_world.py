"""Goes on from a checkpoint on other groups of ranks, or by another system of synchronisation.

The block that was under way ends where the checkpoint was saved: the global model is the one in the
file, and the global update is what then led to it. Residuals are handed to the ranks that are there
so that the mean gradient that they stand for is kept: with N ranks before and N' now, rank k gets
``N'/N`` times the residuals of ranks k, k + N', ..., hence ``sum(r') / N' = sum(r) / N``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.broadcast import by_dtype
from lightning_hier.comm.flat import FlatView
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.worker import GradientMemory
from lightning_hier.strategies.checkpoints.resuming import SavedRun
from lightning_hier.strategies.checkpoints.run_state import RunState
from lightning_hier.strategies.checkpoints.shares import joined


@torch.no_grad()
def resume_elsewhere(
    saved: SavedRun,
    checkpoint: Mapping[str, Any],
    state: RunState,
    *,
    opens_blocks: bool,
) -> None:
    """Take over models, updates, step counts and optimizers; the module holds the start model.

    A collective of every group. The module must hold the global model of the checkpoint.

    Args:
        saved: the run.
        checkpoint: it was saved in; it has rank 0's optimizers.
        state: of this rank's run, which has taken over the counts of steps.
        opens_blocks: whether there are blocks now, and their first one has begun.

    Raises:
        ValueError: the model has other tensors than the one that was saved.

    """
    state.begin_blocks_anew()
    state.load_optimizers(checkpoint["optimizer_states"])
    if not opens_blocks or saved.section["counts"] is None:
        return
    shares = saved.blocks_of(0)
    pending = [steps["in_block"] > 0 for steps in saved.section["steps"]]
    for index, block in enumerate(state.open_blocks(saved.section)):
        parts = [[blocks[index][i] for blocks in shares] for i in range(len(shares[0][index]))]
        models = _models(block, parts, pending=pending[index])
        block.restart(models, state.by_parameter(saved.section["counts"][index]))


def _models(
    block: ModelBlock, parts: Sequence[Sequence[Mapping[str, Any]]], *, pending: bool
) -> list[dict[str, Tensor]]:
    """W and Delta of each dtype, whole, as if the block had ended with the present model."""
    before = {shares[0]["dtype"]: _whole(shares) for shares in parts}
    models = []
    for own in block.state():
        now = _present(block, own["dtype"])
        if own["elements"] == 0:
            models.append({"global_model": now, "update": now})
            continue
        if own["dtype"] not in before or before[own["dtype"]][0].numel() != now.numel():
            raise ValueError(
                f"the checkpoint's global update does not fit the {now.numel()} trainable elements "
                f"of {own['dtype']} of this model: resume with the model that was saved"
            )
        global_model, update, old = before[own["dtype"]]
        if pending:
            starts = old.update_from == "start"
            update = now - (old.start_model(global_model, update) if starts else global_model)
        models.append({"global_model": now, "update": update})
    return models


def _whole(shares: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, BlockFilter]:
    """W, Delta and filter from the shares of a group's ranks; Delta is zero where none is kept.

    The update in flight of an overlapped block is applied.
    """
    block_filter = BlockFilter(**shares[0]["filter"])
    model = torch.cat([share["global_model"] for share in shares])
    update, in_flight = joined(shares, "update"), joined(shares, "in_flight")
    if in_flight is not None:
        block_filter.advance_by_(in_flight, model, update)
    return model, torch.zeros_like(model) if update is None else update, block_filter


def _present(block: ModelBlock, dtype: str) -> Tensor:
    same = [own for kind, own in by_dtype(block.members.parameters).items() if str(kind) == dtype]
    view = FlatView(same[0] if same else [])
    flat = torch.empty(len(view), dtype=view.tensors[0].dtype if same else torch.float32)
    view.read_(0, len(view), flat)
    return flat


def take_residuals(
    saved: SavedRun, state: RunState, memories: Mapping[int, GradientMemory], total: int
) -> None:
    """Give each worker its part of the residuals that all had; reads the files of those workers.

    Args:
        saved: the run.
        state: of this rank's run.
        memories: of the workers of this rank, by their numbers.
        total: number of all present workers.

    """
    share = total / saved.ranks
    first = saved.of_rank(0)["memory"]
    for worker, memory in memories.items():
        sums = {name: torch.zeros_like(residual) for name, residual in first["residuals"].items()}
        for before in range(worker, saved.ranks, total):
            residuals = (first if before == 0 else saved.of_rank(before)["memory"])["residuals"]
            for name, residual in residuals.items():
                sums[name].add_(residual, alpha=share)
        # The workers of a group need the same thresholds, and groups may differ.
        memory.load({"residuals": sums, "thresholds": first["thresholds"]}, state.parameters)


def what_changes(
    saved: SavedRun, layout: RankLayout, kinds: Mapping[str, Any], *, keeps_residuals: bool
) -> str:
    """For people: in what the run goes on otherwise than the one that was saved."""
    (devices, groups), before = layout.sizes, saved.sizes
    said = []
    if (devices, groups) != before:
        said.append(f"{groups} groups of {devices} ranks instead of {before[1]} of {before[0]}")
    said += [
        f"{name} is {kinds[name]} instead of {old}"
        for name, old in saved.section["kinds"].items()
        if kinds[name] != old
    ]
    steps = max(count["in_block"] for count in saved.section["steps"])
    given_up = ["block momentum 'auto' follows the number of groups"]
    if steps and saved.section["counts"] is not None:
        given_up.append(f"the block that was under way ended after {steps} steps")
    given_up.append(
        f"the residuals of {saved.ranks} ranks were handed to {layout.world_size}"
        if keeps_residuals
        else "residuals, if there were any, are given up"
    )
    if saved.section["kinds"]["across_dtype"] not in (None, "same"):
        given_up.append("the error feedback of quantisation is dropped")
    given_up.append("local optimizers go on from that of rank 0")
    given_up.append("random numbers and the order of the data begin anew")
    text = f"Resuming with a change: {'; '.join(said)}. So {', '.join(given_up)}."
    if devices != before[0] and layout.world_size == saved.ranks:
        # "node" counts the workers of a host, which are more where hosts are fewer.
        text += f" As many workers are there as before: group_size={before[0]} keeps their groups."
    return text
