"""The model with which all ranks start."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.agreement import require_same_list
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators


def share_initial_model(module: Module, communicators: Communicators) -> None:
    """Copy the model of rank 0 to every rank, in place. A collective of the world.

    If ranks hold shards, those of the first group are copied to the others.

    Raises:
        ValueError: on every rank, if the models of the ranks have different tensors.

    """
    # First, because a broadcast goes by position: it may hang, or write into other tensors.
    require_same_list(
        described_tensors(module),
        communicators.device,
        "the module must have the same tensors in the same order on all ranks",
        "Layers, parameters and buffers must be created and frozen in the same order on all ranks.",
    )
    place = communicators.progress.at("the broadcast of the initial model")
    with place, torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        broadcast_tensors_(tensors, communicators.replicas(module), "initial_model")


def described_tensors(module: Module) -> list[str]:
    """Name, shape and dtype of each parameter and buffer, in order."""
    tensors: list[tuple[str, str, Tensor]] = []
    for name, parameter in module.named_parameters():
        kind = "parameter" if parameter.requires_grad else "frozen parameter"
        tensors.append((kind, name, parameter))
    tensors += [("buffer", name, buffer) for name, buffer in module.named_buffers()]
    return [f"{kind} {name} {tuple(t.shape)} {t.dtype}" for kind, name, t in tensors]
