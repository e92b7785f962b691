"""An excluded group resets the state of its local optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hier.comm.blocks.local_state import forget_state_


def _trained(kind: str, **options: Any) -> tuple[torch.optim.Optimizer, nn.Parameter]:
    weight = nn.Parameter(torch.ones(3))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    for _ in range(3):
        weight.grad = torch.full((3,), torch.nan)
        optimizer.step()
    with torch.no_grad():
        weight.fill_(1.0)
    return optimizer, weight


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("NAdam", {}),
        ("Rprop", {}),
        ("Adagrad", {"initial_accumulator_value": 0.5}),
        ("ASGD", {}),
        ("RMSprop", {"centered": True, "momentum": 0.9}),
    ],
)
def test_reset_optimizer_behaves_like_a_new_one(kind: str, options: dict[str, Any]) -> None:
    old, weight = _trained(kind, **options)
    forget_state_(old, [weight], [])
    fresh = nn.Parameter(torch.ones(3))
    new = getattr(torch.optim, kind)([fresh], lr=0.1, **options)
    for step in range(1, 4):
        for optimizer, parameter in ((old, weight), (new, fresh)):
            parameter.grad = torch.full((3,), float(step))
            optimizer.step()
    assert torch.equal(weight, fresh)
    assert weight.isfinite().all()


def test_averaged_state_stays_and_other_state_is_reset() -> None:
    """RMSprop creates all of its state or none, so the other tensors must stay in it."""
    optimizer, weight = _trained("RMSprop", momentum=0.9)
    momentum = optimizer.state[weight]["momentum_buffer"].fill_(2.0)
    forget_state_(optimizer, [weight], [momentum])
    state = optimizer.state[weight]
    assert state["momentum_buffer"] is momentum and momentum.eq(2.0).all()
    assert state["square_avg"].eq(0.0).all() and state["step"] == 0.0
    weight.grad = torch.ones(3)
    optimizer.step()
    assert weight.isfinite().all()


def test_state_of_parameters_outside_the_block_stays() -> None:
    inside, outside = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([inside, outside])
    for parameter in (inside, outside):
        parameter.grad = torch.ones(1)
    optimizer.step()
    forget_state_(optimizer, [inside], [])
    assert inside not in optimizer.state
    assert optimizer.state[outside]["step"] == 1.0
