"""State of local optimizers, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.comm.agreement import broadcast_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.sharded_tensors import local_tensor, sharded_like


def local_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """The state of ``optimizer`` with the local part of each tensor, not copied."""
    state = optimizer.state_dict()
    local = {
        index: {
            name: local_tensor(value) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": local}


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load ``state`` bit for bit.

    torch converts a state to the dtype of its parameter, which rounds counts in double precision.
    """
    optimizer.load_state_dict(dict(state))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, saved in state["state"].items():
        parameter = parameters[index]
        loaded = optimizer.state[parameter]
        for name, value in saved.items():
            if not isinstance(value, Tensor):
                continue
            if loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device, copy=True)
            if value.dim():  # counts are not divided
                loaded[name] = sharded_like(loaded[name], parameter)


def broadcast_optimizer_(optimizer: Optimizer, world: Channel, device: torch.device) -> None:
    """Give all ranks the state of rank 0's optimizer, of a module that is not divided, in place.

    Hyperparameters are those of each rank. A collective of the world.
    """
    own = optimizer.state_dict()
    described = {
        str(index): {
            name: [list(value.shape), str(value.dtype).removeprefix("torch.")]
            if isinstance(value, Tensor)
            else value
            for name, value in values.items()
        }
        for index, values in own["state"].items()
    }
    received: dict[int, dict[str, Any]] = {}
    for index, values in broadcast_json(described, 0, device).items():
        received[int(index)] = state = {}
        for name, value in values.items():
            if isinstance(value, list):
                shape, dtype = value
                if world.position == 0:
                    sent = own["state"][int(index)][name].detach().to(device, copy=True)
                else:
                    sent = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                world.broadcast_(sent.reshape(-1).view(torch.uint8), "optimizer_state").wait()
                value = sent
            state[name] = value
    load_optimizer(optimizer, {**own, "state": received})
