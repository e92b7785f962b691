"""State that is created for local optimizers has the form that torch requires."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.adam_state import AdamMoments
from lightning_hier.comm.blocks.health import Averaging

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
