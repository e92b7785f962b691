"""Block synchronisation of a module without a Trainer."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker


def open_blocks(
    module: nn.Module, optimizer: Optimizer, config: BlockSync, communicators: Communicators
) -> BlockSynchroniser:
    """Create the synchroniser of a module with one optimizer. All ranks must call it."""
    worker = Worker()
    worker.count_optimizers(1)
    synchroniser = BlockSynchroniser(
        module, [optimizer], config, communicators=communicators, worker=worker
    )
    synchroniser.before_step()
    return synchroniser
