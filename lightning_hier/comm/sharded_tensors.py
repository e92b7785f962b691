"""Tensors of modules that are divided among ranks by FSDP2 or tensor parallelism."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` that this rank holds, detached: all of it, or the shard of a DTensor.

    It has the storage of ``tensor``, so writing to it changes ``tensor`` in place. It does not
    communicate.
    """
    # Arithmetic on DTensors may redistribute them, which would be a hidden collective.
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def sharded_like(local: Tensor, tensor: Tensor) -> Tensor:
    """A tensor of the kind of ``tensor`` whose local part is ``local``. It does not communicate.

    Args:
        local: the part that this rank holds.
        tensor: a DTensor of the same global shape, or a Tensor.

    """
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local.to(tensor.device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,  # the check is a collective
        # Without these, the global shape would be computed as if all shards were equal.
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def is_sharded(module: Module) -> bool:
    """Whether ranks hold different parts of the parameters of ``module``."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def reshard_(module: Module) -> None:
    """Free the weights that FSDP2 has gathered, so that the next forward pass reads the shards.

    After a forward pass without a backward pass, FSDP2 keeps the gathered weights of its root
    module. They would hide new values of the shards. It does not communicate.
    """
    for child in module.modules():
        if isinstance(child, FSDPModule):
            child.reshard()
