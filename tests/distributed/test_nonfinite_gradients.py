"""A NaN or inf in a gradient of one rank gives NaN on all ranks and does not change residuals."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

import lightning_hier as lh
from tests.distributed.gradients import Branches, Run, inputs, start, tower
from tests.ranks import run_ranks


def _state(run: Run) -> list[tuple[torch.Tensor, float | None]]:
    memory = run.worker.memory.tensors.values()
    return [(tensor.residual.clone(), tensor.threshold) for tensor in memory]


def _poisoned(bad: float, place: str, dense_below: int) -> None:
    module = tower()
    run = start(lh.GTC(density=0.1, dense_below=dense_below), module, bucket_cap_mb=0.0002)
    for step in range(10):
        if step not in (0, 4):  # step 0 has no threshold yet, step 4 has one
            run.step(inputs(step))
            assert all(p.grad.isfinite().all() for p in module.parameters())
            continue
        before = _state(run)
        handle = None
        if dist.get_rank() == 1:

            def poison(gradient: torch.Tensor) -> torch.Tensor:
                gradient = gradient.clone()
                gradient.view(-1)[2] = bad
                return gradient

            handle = module.get_parameter(place).register_hook(poison)
        run.step(inputs(step), counted=False)
        if handle is not None:
            handle.remove()
        assert all(p.grad.isnan().all() for p in module.parameters())
        for (old, threshold), (new, new_threshold) in zip(before, _state(run), strict=False):
            assert torch.equal(old, new)
            assert threshold == new_threshold
    assert max(run.loss_of_gradient().values()) < 1e-12
    assert math.isfinite(run.worker.memory.residual_norm())


def _all_poisoned() -> None:
    _poisoned(math.inf, "layers.1.weight", 0)
    _poisoned(math.nan, "layers.3.weight", 7)
    _poisoned(-math.inf, "layers.0.bias", 7)  # too small to be compressed


def test_bad_gradient_stays_out_of_residuals() -> None:
    run_ranks(_all_poisoned, 2)


def _left_over() -> None:
    for dense_below in (0, 1024):
        _left_over_by(dense_below)


def _left_over_by(dense_below: int) -> None:
    """Train two branches with separate optimizers, which only clear their own gradients."""
    torch.manual_seed(5)
    module = Branches().double()
    run = start(lh.GTC(density=0.2, dense_below=dense_below), module, find_unused=True)
    first, second = module.branches[0], module.branches[1]
    rank = dist.get_rank()

    def backward(used: set[int], factor: float = 1.0) -> None:
        module.used = used
        (run.model(inputs(0)).square().sum() * factor).backward()

    def sound(branch: torch.nn.Module) -> bool:
        return all(bool(own.grad.isfinite().all()) for own in branch.parameters())

    for _ in range(3):  # the first round has no thresholds
        first.zero_grad()
        backward({0}, math.inf if rank == 1 else 1.0)
        assert not sound(first)
        second.zero_grad()
        backward({1})
        assert sound(second)
        assert not sound(first)  # the step of the other optimizer has not changed it
        first.zero_grad()
        backward({0})
        assert sound(first)
        second.zero_grad()
        backward({1})
    backward({0}, math.inf)
    second.zero_grad()
    if rank == 0:
        first.zero_grad()
    backward({0, 1} if rank == 0 else {1})
    assert sound(first) and sound(second)


def test_what_a_failed_step_leaves_behind_does_not_fail_those_of_others() -> None:
    run_ranks(_left_over, 2)
