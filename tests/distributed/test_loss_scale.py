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


def _scaler() -> list[tuple[float, bool]]:
    """A GradScaler over GTC: an overflow on one rank skips the step on both, with equal scales."""
    module = tower().float()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    run = start(lh.GTC(density=0.1, dense_below=7), module, grad_scale=scaler.get_scale)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    seen = []
    for step in range(9):
        before = module.layers[0].bias.detach().clone()
        optimizer.zero_grad()
        batch = inputs(step).float()
        loss = run.model(batch).square().sum()
        if step == 4 and torch.distributed.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), bool((module.layers[0].bias != before).any())))
    assert run.worker.memory.residual_norm() < float("inf")
    assert all(p.isfinite().all() for p in module.parameters())
    return seen


def test_overflow_on_one_rank_skips_the_step_on_all() -> None:
    first, second = run_ranks(_scaler, 2)
    assert first == second
    assert [moved for _, moved in first] == [step != 4 for step in range(9)]
    assert first[4][0] < first[3][0]
    assert first[8][0] > first[4][0]
