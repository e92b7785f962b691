"""Gradients that are taken from an optimizer, under gradient scaling too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.strategies.step_gradients import StepGradients

SCALE = 1024.0


def _taken(kind: Any, factors: list[float], **settings: Any) -> list[Tensor | None]:
    """What is taken at each step: the gradient is the factor; None: the step was left out."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = kind([parameter], lr=0.5, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    found: list[Tensor | None] = []

    def take() -> None:
        assert parameter.grad is not None
        found.append(parameter.grad.clone())

    gradients = StepGradients(optimizer, check=lambda: None, take=take)
    for factor in factors:
        gradients.taken = False
        scaler.scale((factor * parameter).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if not gradients.taken:
            found.append(None)
        optimizer.zero_grad()
    assert torch.equal(parameter, torch.ones(3)) and not optimizer.state[parameter]
    return found


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimizers_get_no_scaled_gradients_and_none_that_are_not_finite(kind: Any) -> None:
    """Gradient scaling leaves both to an optimizer that is fused."""
    factors = [0.25, float("inf"), 3.0]
    plain = _taken(kind, factors)
    fused = _taken(kind, factors, fused=True)
    for found in (plain, fused):
        assert [None if one is None else one.tolist() for one in found] == [
            [0.25] * 3,
            None,
            [3.0] * 3,
        ]
