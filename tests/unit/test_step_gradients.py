"""Gradients at an optimizer step are unscaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.strategies.step_gradients import StepGradients

SCALE = 1024.0


def _taken(kind: Any, factors: list[float], **settings: Any) -> list[Tensor | None]:
    """Gradients at each step, which equal the factors, or None where the step was skipped."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = kind([parameter], lr=0.5, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    gradients_of_steps: list[Tensor | None] = []

    def take() -> None:
        assert parameter.grad is not None
        gradients_of_steps.append(parameter.grad.clone())

    gradients = StepGradients(optimizer, check=lambda: None, take=take)
    for factor in factors:
        gradients.taken = False
        scaler.scale((factor * parameter).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if not gradients.taken:
            gradients_of_steps.append(None)
        optimizer.zero_grad()
    assert torch.equal(parameter, torch.ones(3)) and not optimizer.state[parameter]
    return gradients_of_steps


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimizers_get_unscaled_finite_gradients(kind: Any) -> None:
    """A GradScaler leaves unscaling and the check to a fused optimizer."""
    factors = [0.25, float("inf"), 3.0]
    plain = _taken(kind, factors)
    fused = _taken(kind, factors, fused=True)
    for steps in (plain, fused):
        assert [None if one is None else one.tolist() for one in steps] == [
            [0.25] * 3,
            None,
            [3.0] * 3,
        ]
