"""Gradients at an optimizer step are unscaled, and those of workers are freed when reduced."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.gradients import worker_gradients
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.worker_gradients import WorkerGradients
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


def test_gradients_of_workers_are_freed_bucket_by_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gradients, "_BUCKET_BYTES", 4)
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    references: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def reduce(bucket: Any) -> Any:
        alive.append(sum(own() is not None for own in references))
        mean = torch.stack(list(bucket.buffers)).mean(0)
        return SimpleNamespace(wait=lambda: mean)

    reducer: Any = SimpleNamespace(channel=SimpleNamespace(size=1), reduce=reduce)
    gradients = WorkerGradients(
        parameters, reducer, ReachedParameters(parameters, every_step=False)
    )
    for worker in range(2):
        with gradients.of(worker):
            for own in parameters:
                own.grad = torch.full((2,), float(worker))
                references.append(weakref.ref(own.grad))
    gradients.reduce(range(2))
    assert alive == [4, 2, 0]
    assert [own.grad.tolist() for own in parameters if own.grad is not None] == [[0.5, 0.5]] * 3
