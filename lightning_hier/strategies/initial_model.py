"""All ranks start from one model."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from lightning_hier.comm.agreement import require_same
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators


def share_initial_model(module: Module, communicators: Communicators) -> None:
    """Give every rank the model of rank 0, in place. A collective of the world.

    Raises:
        ValueError: on every rank, if the ranks' models differ in more than their values.

    """
    require_same(model_settings(module), communicators.device)
    place = communicators.progress.at("the broadcast of the initial model")
    with place, torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        broadcast_tensors_(tensors, communicators.world, "initial_model")


def model_settings(module: Module) -> dict[str, Any]:
    """What must not differ between ranks about the model, before anything of it is sent."""
    settings: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else " frozen"
        settings[f"parameter {name}"] = f"{tuple(parameter.shape)} {parameter.dtype}{frozen}"
    for name, buffer in module.named_buffers():
        settings[f"buffer {name}"] = f"{tuple(buffer.shape)} {buffer.dtype}"
    return settings
