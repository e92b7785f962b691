"""State that is created for local optimizers has the form that torch requires."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.adam_state import AdamMoments
from lightning_hier.comm.blocks.health import Averaging
from lightning_hier.comm.blocks.local_state import AveragedMomentum

KINDS = ["Adam", "AdamW", "NAdam", "RAdam"]
# torch has no fused kernels of NAdam and RAdam, and captures graphs only on GPUs.
ON_CPU: list[tuple[str, dict[str, Any]]] = [
    *((kind, options) for kind in KINDS for options in ({}, {"foreach": True})),
    *((kind, {"fused": True}) for kind in ("Adam", "AdamW")),
]
CAPTURED: list[tuple[str, dict[str, Any]]] = [(kind, {"capturable": True}) for kind in KINDS]


class _Twins:
    """A channel to one other rank that always has the same values."""

    size = 2

    def all_reduce_(self, tensor: Tensor, kind: str) -> _Twins:
        assert kind == "steps"
        tensor.mul_(2)
        return self

    def wait(self) -> None:
        """The result is complete at once."""


def _moments(optimizer: Any, weights: list[nn.Parameter]) -> AdamMoments:
    channel: Any = _Twins()
    return AdamMoments(optimizer, weights, corrected=True, eta=0.6, across=channel)


@pytest.mark.parametrize(("kind", "options"), [*ON_CPU, *CAPTURED])
def test_step_counts_have_the_form_that_the_optimizer_requires(
    kind: str, options: dict[str, Any]
) -> None:
    """Captured graphs always read the same tensor. Fused kernels accept only float32."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = getattr(torch.optim, kind)([weight], **options)
    moments = _moments(optimizer, [weight])
    state = optimizer.state[weight]
    counts = {name: state[name] for name in ("step", "mu_product") if name in state}
    assert ("mu_product" in counts) == (kind == "NAdam")
    for count in counts.values():
        count.add_(3.0 if count is counts["step"] else 0.0)
        needs_float32 = "fused" in options or "capturable" in options
        assert count.dtype == (torch.float32 if needs_float32 else torch.float64)
    moments.note()
    moments.send(Averaging(mean_squares=0.0, models=2), exchanged=True)
    moments.finish(exchanged=True)
    for name, count in counts.items():
        assert state[name] is count
    assert counts["step"].item() == pytest.approx(3 + 0.6 * 3, rel=1e-7)
    if kind == "NAdam":
        assert 0.0 < counts["mu_product"].item() < 0.9**4


@pytest.mark.parametrize(("kind", "options"), ON_CPU)
def test_optimizer_continues_from_a_created_state_as_from_its_own(
    kind: str, options: dict[str, Any]
) -> None:
    """Weights are in float32, and step counts may be in float64."""
    ends = []
    for created in (True, False):
        weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
        if created:
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
def test_optimizer_continues_from_a_created_momentum_as_from_its_own(
    kind: str, options: dict[str, Any], foreach: bool
) -> None:
    ends = []
    for created in (True, False):
        weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        settings = {"lr": 0.1, "momentum": 0.9, "foreach": foreach, **options}
        optimizer = getattr(torch.optim, kind)([weight], **settings)
        if created:
            (carried,) = AveragedMomentum(optimizer, [weight]).carried
        for _ in range(5):
            weight.grad = weight.detach() - 0.3
            optimizer.step()
        if created:
            assert optimizer.state[weight]["momentum_buffer"] is carried
        ends.append(weight.detach())
    assert torch.equal(*ends)
