"""State of Adam and its relatives, which they would create at the first gradient of a parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer


def create_states(optimizer: Optimizer) -> None:
    """Create the missing state of the trainable parameters, with counts that keep fractions.

    ``torch.distributed.checkpoint`` copies a saved state into the tensors that an optimizer has,
    and rounds counts to their dtype.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                create_state(optimizer, parameter, group)


def create_state(
    optimizer: Optimizer, parameter: Parameter, group: dict[str, Any]
) -> dict[str, Any]:
    """The state of a parameter, created if it is missing, with counts that keep fractions."""
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        _make_state(state, parameter, group)
    for name in ("step", "mu_product"):
        # Fractional counts need float64. Fused kernels and captured graphs require float32.
        if name in state and not (group.get("fused") or group.get("capturable")):
            state[name] = torch.as_tensor(state[name]).double()
    return state


def _make_state(state: dict[str, Any], parameter: Parameter, group: dict[str, Any]) -> None:
    """Create the state that the optimizer creates at the first gradient of a parameter."""
    # As in torch: on the CPU unless a kernel reads it, so that reading it does not wait for a GPU.
    on_device = group.get("fused") or group.get("capturable")
    count = torch.zeros((), device=parameter.device if on_device else "cpu")
    state["step"] = count.float()
    if "momentum_decay" in group:  # NAdam
        state["mu_product"] = torch.ones_like(state["step"])
    # Without the maximum of second moments, because BMUFAdam refuses amsgrad.
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
