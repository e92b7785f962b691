"""Loss scaling: residuals and thresholds do not know of it, whatever it does."""

from __future__ import annotations

import torch
from torch import Tensor

import lightning_hier as lh
from tests.distributed.gradients import inputs, start, tower
from tests.ranks import run_ranks


def _run(scales: list[float]) -> tuple[list[Tensor], list[Tensor], list[float | None]]:
    """Unscaled gradients of the last step, residuals and thresholds."""
    scale = 1.0
    run = start(lh.GTC(density=0.1, dense_below=7), tower().float(), grad_scale=lambda: scale)
    for step, scale in enumerate(scales):  # noqa: B007 - the hook reads it
        run.step(inputs(step).float(), factor=scale, counted=False)
    gradients = [p.grad / scale for p in run.model.module.parameters()]
    memory = list(run.worker.memory.tensors.values())
    return gradients, [m.residual for m in memory], [m.threshold for m in memory]


def test_residuals_and_thresholds_are_independent_of_the_scale() -> None:
    """Powers of two, so that the numbers must be equal and not only close."""
    unscaled = run_ranks(_run, 2, [1.0] * 10)
    scaled = run_ranks(_run, 2, [65536.0] * 3 + [131072.0] * 3 + [1024.0] * 4)
    for plain, other in zip(unscaled, scaled, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain[0], other[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(plain[1], other[1], strict=True))
        assert plain[2] == other[2]
        assert any(residual.abs().sum() > 0 for residual in plain[1])
