"""State of local optimizers, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

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
