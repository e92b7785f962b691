"""Gradients of the workers that share a model: kept apart, handed over, and not kept twice."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hier.comm.gradients import worker_gradients
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.worker_gradients import WorkerGradients


def test_gradients_are_let_go_as_they_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gradients, "_BUCKET_BYTES", 4)
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    made: list[weakref.ref[torch.Tensor]] = []
    left = []

    def reduce(bucket: Any) -> Any:
        left.append(sum(own() is not None for own in made))
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
                made.append(weakref.ref(own.grad))
    gradients.reduce(range(2))
    assert left == [4, 2, 0]
    assert [own.grad.tolist() for own in parameters if own.grad is not None] == [[0.5, 0.5]] * 3
