"""Optimizer states that are made and moved: those that torch insists on keep their form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.adam_state import AdamMoments
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.local_state import AveragedMomentum

KINDS = ["Adam", "AdamW", "NAdam", "RAdam"]
# torch has no fused kernel of NAdam and RAdam, and captures on GPUs alone.
ON_CPU: list[tuple[str, dict[str, Any]]] = [
    *((kind, options) for kind in KINDS for options in ({}, {"foreach": True})),
    *((kind, {"fused": True}) for kind in ("Adam", "AdamW")),
]
CAPTURED: list[tuple[str, dict[str, Any]]] = [(kind, {"capturable": True}) for kind in KINDS]


class _Twins:
    """Stands for a channel to one other rank that always holds the same."""

    size = 2

    def all_reduce_(self, tensor: Tensor, kind: str) -> _Twins:
        assert kind == "steps"
        tensor.mul_(2)
        return self

    def wait(self) -> None:
        """It is there already."""


def _moments(optimizer: Any, weights: list[nn.Parameter]) -> AdamMoments:
    channel: Any = _Twins()
    return AdamMoments(optimizer, weights, corrected=True, eta=0.6, across=channel)


@pytest.mark.parametrize(("kind", "options"), [*ON_CPU, *CAPTURED])
def test_step_counts_have_the_form_that_the_optimizer_insists_on(
    kind: str, options: dict[str, Any]
) -> None:
    """Captured graphs read the same tensor for ever; fused kernels take float32 alone."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = getattr(torch.optim, kind)([weight], **options)
    moments = _moments(optimizer, [weight])
    state = optimizer.state[weight]
    counts = {name: state[name] for name in ("step", "mu_product") if name in state}
    assert ("mu_product" in counts) == (kind == "NAdam")
    for count in counts.values():
        count.add_(3.0 if count is counts["step"] else 0.0)
        insists = "fused" in options or "capturable" in options
        assert count.dtype == (torch.float32 if insists else torch.float64)
    moments.note(first=True)
    moments.collect(Participation(mean_squares=0.0, healthy=2))
    moments.finish()
    for name, count in counts.items():
        assert state[name] is count
    assert counts["step"].item() == pytest.approx(3 + 0.6 * 3, rel=1e-7)
    if kind == "NAdam":
        assert 0.0 < counts["mu_product"].item() < 0.9**4


@pytest.mark.parametrize(("kind", "options"), ON_CPU)
def test_optimizer_goes_on_from_a_state_made_for_it_as_from_its_own(
    kind: str, options: dict[str, Any]
) -> None:
    """Weights in float32 beside counts in float64 are nothing that it minds."""
    ends = []
    for made in (True, False):
        weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
        if made:
            _moments(optimizer, [weight])
        for _ in range(8):
            weight.grad = weight.detach() - 0.3
            optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=0.0)


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
