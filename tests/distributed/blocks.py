"""Model blocks on the ranks of a test, without a Trainer."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import nn

from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.schedule import DueFragments
from lightning_hier.comm.blocks.shard_placement import make_placement
from lightning_hier.comm.blocks.trained import divide
from lightning_hier.comm.communicators import Communicators


def make_blocks(
    module: nn.Module,
    communicators: Communicators,
    sync: BlockSync,
    trained: Collection[nn.Parameter] | None = None,
) -> list[ModelBlock]:
    """One block for each child of the module, with its own optimizer."""
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in module.children()]
    members = divide(
        module,
        optimizers,
        set(module.parameters()) if trained is None else trained,
        ModuleBuffers(module).names,
    )
    return [
        ModelBlock(
            own,
            BlockContext(
                optimizer,
                sync,
                make_placement("sharded", communicators.group, nics=None),
                communicators,
            ),
        )
        for own, optimizer in zip(members, optimizers, strict=True)
    ]


def agree(reading: ModelHealth, groups: int = 4) -> Averaging:
    """Equal weights of all groups. A collective of the world."""
    squares = torch.tensor(reading.squares, dtype=torch.float64)
    dist.all_reduce(squares)
    return Averaging(float(squares) / groups, groups)


def end_block(block: ModelBlock, groups: int = 4) -> BlockReport:
    """End a block of one step, as a schedule with one fragment and a delay of 0 or a block does."""
    block.count_step()
    report = block.synchronise(DueFragments(0, 0), agree(block.read(0), groups), delay=50)
    return report or BlockReport(0.0, 0.0)
