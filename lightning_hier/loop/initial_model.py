"""The model with which all ranks start."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import Module

from lightning_hier.comm.agreement import require_same_list
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators


def share_initial_model(
    module: Module, communicators: Communicators, mesh: DeviceMesh | None = None
) -> None:
    """Copy the model of rank 0 to every rank, in place. A collective of the world.

    If ranks hold shards, those of the first group are copied to the others. A tensor is divided
    along some dimensions of the mesh. Ranks along the others may have initialised it differently,
    and get the values of the first of them.

    Args:
        module: module, perhaps divided.
        communicators: channels of this rank, which count the bytes.
        mesh: mesh of the group, if the module is divided.

    Raises:
        ValueError: on every rank, if the models of the ranks have different tensors.

    """
    # First, because a broadcast goes by position: it may hang, or write into other tensors.
    require_same_tensors(module, communicators.device)
    place = communicators.progress.at("the broadcast of the initial model")
    with place, torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        # First inside each group: then the ranks of the first group send consistent values.
        for group in [] if mesh is None else mesh.get_all_groups():
            channel = communicators.in_group(group)
            ranks = set(channel.ranks)
            # torch makes a DTensor equal along the dimensions of its own mesh.
            to_share = [tensor for tensor in tensors if not ranks <= mesh_ranks(tensor)]
            broadcast_tensors_(to_share, channel, "initial_model")
        broadcast_tensors_(tensors, communicators.replicas(module), "initial_model")


def require_same_tensors(module: Module, device: torch.device) -> None:
    """Raise ValueError on every rank if the models of the ranks have different tensors.

    A collective of the world.
    """
    require_same_list(
        described_tensors(module),
        device,
        "the module must have the same tensors in the same order on all ranks",
        "Layers, parameters and buffers must be created and frozen in the same order on all ranks.",
    )


def mesh_ranks(tensor: Tensor) -> set[int]:
    """Ranks of the mesh of a DTensor; none for other tensors."""
    if not isinstance(tensor, DTensor):
        return set()
    return set(tensor.device_mesh.mesh.flatten().tolist())


def described_tensors(module: Module) -> list[str]:
    """Name, shape and dtype of each parameter and buffer, in order."""
    tensors: list[tuple[str, str, Tensor]] = []
    for name, parameter in module.named_parameters():
        kind = "parameter" if parameter.requires_grad else "frozen parameter"
        tensors.append((kind, name, parameter))
    tensors += [("buffer", name, buffer) for name, buffer in module.named_buffers()]
    return [f"{kind} {name} {tuple(t.shape)} {t.dtype}" for kind, name, t in tensors]
