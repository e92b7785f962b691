"""Prepares the module of a rank: initial model, SyncBatchNorm, wrapped layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.plugins.layer_sync import LayerSync
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module, SyncBatchNorm
from typing_extensions import override

from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.loop.initial_model import mesh_ranks

# Names of the layer in the modules of torch.compile and of activation checkpointing.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")


def check_divided(module: Module, mesh: DeviceMesh) -> None:
    """Check that ``module`` is divided, and that FSDP2 averages all of its gradients in the group.

    Args:
        module: module after ``configure_model``.
        mesh: mesh of the group.

    Raises:
        ValueError: it is not, or a trainable parameter is outside of ``fully_shard``.

    """
    if mesh.size() > 1 and not is_sharded(module):
        raise ValueError(
            f"configure_model() must divide the module among the {mesh.size()} ranks of a group, "
            "by fully_shard(module, mesh=self.device_mesh['data_parallel']) or parallelize_module"
        )
    ranks = set(mesh["data_parallel"].mesh.flatten().tolist())
    # FSDP2 averages the gradients of a parameter only over the ranks of its own mesh.
    outside = [
        name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and not ranks <= mesh_ranks(parameter)
    ]
    if len(ranks) > 1 and outside:
        raise ValueError(
            f"{len(outside)} trainable parameters are outside of fully_shard, among them "
            f"{outside[0]!r}, so the {len(ranks)} data-parallel ranks of a group would not average "
            "their gradients: end configure_model() with "
            "fully_shard(self, mesh=self.device_mesh['data_parallel']), which takes all that are "
            "left"
        )


@contextmanager
def unwrapped(module: Module) -> Iterator[None]:
    """Context in which layers stand in the place of what has wrapped them inside ``module``.

    ``torch.compile(layer)`` and activation checkpointing put a layer into another module, so that
    its parameters have other names than in a checkpoint. The module changes in place.
    """
    # Only outermost wrappers: the entries of a wrapper for what it wraps stay as they are.
    wrapped = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if _inner(child) is not child and name not in _WRAPPED
    ]
    for parent, name, child in wrapped:
        setattr(parent, name, _inner(child))
    try:
        yield
    finally:
        for parent, name, child in wrapped:
            setattr(parent, name, child)


def _inner(layer: Module) -> Module:
    """The layer inside all wrappers."""
    for name, child in layer.named_children():
        if name in _WRAPPED:
            return _inner(child)
    return layer


class GroupSyncBatchNorm(LayerSync):
    """SyncBatchNorm within a group, for ``Trainer(sync_batchnorm=True)``."""

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
        """Do nothing, because a SyncBatchNorm is a BatchNorm in evaluation."""
        return model
