"""SyncBatchNorm over the ranks of a group; Lightning's own spans the world at every step."""

from __future__ import annotations

from lightning.pytorch.plugins.layer_sync import LayerSync
from torch.distributed import ProcessGroup
from torch.nn import Module, SyncBatchNorm
from typing_extensions import override


class GroupSyncBatchNorm(LayerSync):
    """What ``Trainer(sync_batchnorm=True)`` does under a hierarchical strategy."""

    def __init__(self, group: ProcessGroup) -> None:
        """Compute batch statistics over ``group``."""
        self._group = group

    @override
    def apply(self, model: Module) -> Module:
        """Convert all BatchNorm layers."""
        converted: Module = SyncBatchNorm.convert_sync_batchnorm(model, self._group)
        return converted

    @override
    def revert(self, model: Module) -> Module:
        """Leave them: in evaluation a SyncBatchNorm is a BatchNorm."""
        return model
