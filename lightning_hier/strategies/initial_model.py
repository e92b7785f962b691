"""All ranks begin with one model."""

from __future__ import annotations

import torch
from torch.nn import Module

from lightning_hier.comm.agreement import require_same
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.strategies import checks


def share_initial_model(module: Module, communicators: Communicators) -> None:
    """Give every rank the model of rank 0, in place. A collective of the world.

    Raises:
        ValueError: on every rank, if the ranks' models differ in more than their values.

    """
    require_same(checks.model_settings(module), communicators.device)
    place = communicators.progress.at("the broadcast of the initial model")
    with place, torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        broadcast_tensors_(tensors, communicators.world, "initial_model")
