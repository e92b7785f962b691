"""What a module and an optimizer of a plain loop may be wrapped in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import Embedding, EmbeddingBag, Module, SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GTC, AllReduce, GradientSync
from lightning_hier.comm.sharded_tensors import is_sharded

_COMPILED = "_orig_mod"

SPARSE = "sparse gradients are not supported"
DENSE = "set sparse=False (GTC sends only a few elements of a dense gradient)"
"""Parts of the errors about a sparse gradient."""


def without_compile(model: Module) -> Module:
    """The module inside ``torch.compile``."""
    while isinstance(inner := getattr(model, _COMPILED, None), Module):
        model = inner
    return model


def without_ddp(model: Module) -> Module:
    """The module inside ``torch.compile`` and DDP, each applied once in any order."""
    model = without_compile(model)
    if isinstance(model, DistributedDataParallel):
        model = without_compile(model.module)
    return model


def inner_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer inside a wrapper, such as that of Accelerate."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return inner_optimizer(inner)
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"optimizer must be a torch.optim.Optimizer or a list of them, got {optimizer!r}"
        )
    return optimizer


def check_wrapping(
    model: Module,
    module: Module,
    communicators: Communicators,
    gradient_sync: GradientSync,
    *,
    warms_up: bool,
) -> None:
    """Raise ValueError unless the gradients of ``model`` can be averaged as it is wrapped.

    Args:
        model: module of the user.
        module: the same without DDP.
        communicators: channels of this rank.
        gradient_sync: gradient synchronisation inside a group.
        warms_up: whether there is a warm-up.

    """
    if any(isinstance(child, DistributedDataParallel) for child in module.modules()):
        raise ValueError(
            "the module is wrapped by DistributedDataParallel twice, or contains one: wrap it once"
        )
    check_shapes(module)
    tensors = chain(module.named_parameters(), module.named_buffers())
    if empty := next((name for name, tensor in tensors if tensor.is_meta), None):
        raise ValueError(
            f"{empty!r} has no values on the meta device: initialise the module before, by "
            "to_empty(device=...) and reset_parameters() or a load, and then create its optimizer"
        )
    check_batch_norm(module, communicators.group.ranks)
    size, groups = communicators.layout.sizes
    if isinstance(model, DistributedDataParallel):
        check_dense(module)
        if isinstance(gradient_sync, GTC):
            check_compressible(module)
        _check_ddp(model, communicators, gradient_sync, warms_up=warms_up and groups > 1)
        return
    if not isinstance(gradient_sync, AllReduce):
        raise ValueError(
            f"gradient_sync={type(gradient_sync).__name__}(...) needs a module that is wrapped by "
            "DistributedDataParallel(model, process_group=groups.group)"
        )
    if size > 1 and not is_sharded(module):
        raise ValueError(
            f"nothing averages the gradients of the {size} ranks of a group: wrap the module by "
            "DistributedDataParallel(model, process_group=groups.group), divide it by "
            "fully_shard(model, mesh=groups.mesh['group']), or use groups of one rank"
        )
    if is_sharded(module):
        _check_divided(module, communicators.group.ranks)


def check_shapes(module: Module) -> None:
    """Raise ValueError for lazy layers that have not been called."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"{', '.join(lazy)} of a lazy layer has no shape yet, so it can't be made equal on all "
            "ranks: call the module once with an example batch before training (with a Trainer, in "
            "setup or before fit)"
        )


def check_dense(module: Module) -> None:
    """Raise ValueError for layers whose gradients are sparse."""
    sparse = [
        name
        for name, child in module.named_modules()
        if isinstance(child, (Embedding, EmbeddingBag)) and child.sparse
    ]
    if sparse:
        raise ValueError(f"{SPARSE}, but {', '.join(sparse)} has sparse=True: {DENSE}")


def check_compressible(module: Module) -> None:
    """Raise ValueError for trainable parameters that GTC cannot compress."""
    named = module.named_parameters()
    imaginary = [name for name, p in named if p.requires_grad and p.is_complex()]
    if imaginary:
        raise ValueError(
            f"GTC compresses real gradients, but {', '.join(imaginary)} is complex: store it as a "
            "real parameter, torch.view_as_real(...), or leave GTC out, as in "
            "HierarchicalStrategy(block_sync=BMUF(...))"
        )


def check_batch_norm(module: Module, group: Sequence[int]) -> None:
    """Raise ValueError for a SyncBatchNorm whose statistics are those of other groups, too."""
    for name, layer in module.named_modules():
        if not isinstance(layer, SyncBatchNorm):
            continue
        ranks = dist.get_process_group_ranks(layer.process_group)  # None is the world
        if not set(ranks) <= set(group):
            raise ValueError(
                f"the SyncBatchNorm {name!r} computes its statistics over the ranks {ranks}, which "
                "sends bytes across groups at every step: pass groups.group to "
                "convert_sync_batchnorm, or in a Trainer leave it out for sync_batchnorm=True"
            )


def _check_divided(module: Module, group: Sequence[int]) -> None:
    # FSDP2 averages the gradients of a parameter over the ranks of its own mesh alone.
    for name, parameter in module.named_parameters():
        ranks = [dist.get_rank()]
        if isinstance(parameter, DTensor):
            ranks = parameter.device_mesh.mesh.flatten().tolist()
        if parameter.requires_grad and sorted(ranks) != sorted(group):
            raise ValueError(
                f"the parameter {name!r} is divided among the ranks {ranks}, and its group has the "
                f"ranks {list(group)}: end with fully_shard(model, mesh=groups.mesh['group']), "
                "which takes all parameters that are left"
            )


def _check_ddp(
    model: DistributedDataParallel,
    communicators: Communicators,
    gradient_sync: GradientSync,
    *,
    warms_up: bool,
) -> None:
    ranks = dist.get_process_group_ranks(model.process_group)
    group, world = communicators.group.ranks, communicators.world.ranks
    if ranks != group and ranks != world:
        raise ValueError(
            f"DistributedDataParallel spans the ranks {ranks}, which are neither this group, "
            f"{group}, nor all: wrap the module with process_group=groups.group"
        )
    if model.static_graph:
        raise ValueError(
            "static_graph=True of DistributedDataParallel can't be used, because it reduces the "
            "first step otherwise: leave it out"
        )
    unused = model.find_unused_parameters
    if ranks != group:
        # Both would communicate with other groups at every step.
        if unused:
            raise ValueError(
                "find_unused_parameters=True of a DistributedDataParallel module over all ranks "
                "sends bytes across groups at every step: wrap the module with "
                "process_group=groups.group, or pass False (in Accelerate by "
                "DistributedDataParallelKwargs, in transformers by ddp_find_unused_parameters)"
            )
        if model.broadcast_buffers and any(True for _ in model.module.buffers()):
            raise ValueError(
                "broadcast_buffers=True of a DistributedDataParallel module over all ranks sends "
                "its buffers across groups at every step: wrap the module with "
                "process_group=groups.group, or pass False (in Accelerate by "
                "DistributedDataParallelKwargs, in transformers by ddp_broadcast_buffers)"
            )
    if unused and warms_up:
        raise ValueError(
            "find_unused_parameters=True can't be combined with a warm-up, in which the gradients "
            "of parameters that one group does not use would differ: pass warmup_steps=0"
        )
    if unused and model.gradient_as_bucket_view and isinstance(gradient_sync, GTC):
        raise ValueError(
            "gradient_as_bucket_view=True can't be combined with GTC and "
            "find_unused_parameters=True: leave it out"
        )
