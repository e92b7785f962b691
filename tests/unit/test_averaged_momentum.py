"""Momentum made before the optimizer makes it: the optimizer goes on as from its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hier.comm.blocks.local_state import AveragedMomentum


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {}), ("SGD", {"nesterov": True}), ("RMSprop", {}), ("RMSprop", {"centered": True})],
)
def test_optimizer_goes_on_from_a_momentum_made_for_it_as_from_its_own(
    kind: str, options: dict[str, Any], foreach: bool
) -> None:
    ends = []
    for made in (True, False):
        weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        settings = {"lr": 0.1, "momentum": 0.9, "foreach": foreach, **options}
        optimizer = getattr(torch.optim, kind)([weight], **settings)
        if made:
            (carried,) = AveragedMomentum(optimizer, [weight]).carried
        for _ in range(5):
            weight.grad = weight.detach() - 0.3
            optimizer.step()
        if made:
            assert optimizer.state[weight]["momentum_buffer"] is carried
        ends.append(weight.detach())
    assert torch.equal(*ends)
