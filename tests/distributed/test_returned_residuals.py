"""Steps with exact gradients add the residuals of earlier compressed steps, and lose none."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

import lightning_hier as lh
from lightning_hier.comm.worker import TensorMemory
from tests.distributed.gradients import Branches, inputs, start
from tests.ranks import run_ranks

_SCALE = 8.0


def _returned() -> None:
    torch.manual_seed(5)
    module = Branches().double()
    run = start(
        lh.GTC(density=0.01),
        module,
        find_unused=True,
        bucket_cap_mb=0.0002,
        grad_scale=lambda: _SCALE,
    )
    names = dict(module.named_parameters())
    left = {own: torch.randn(own.numel(), dtype=torch.float64) for own in names.values()}
    memory = run.worker.memory.tensors
    memory.update({own: TensorMemory(rest.clone(), 0.5) for own, rest in left.items()})

    def backward(used: set[int], bad: float = 1.0) -> dict[str, torch.Tensor]:
        module.used = used
        bad = bad if dist.get_rank() == 0 else 1.0
        handle = module.branches[1].bias.register_hook(lambda gradient: gradient * bad)
        own = run.own_gradients(inputs(0), _SCALE)
        run.step(inputs(0), factor=_SCALE, counted=False)
        handle.remove()
        return own

    for bad in (math.inf, math.nan):
        backward({0, 1}, bad)
        used = [*module.branches[0].parameters(), *module.branches[1].parameters()]
        assert all(own.grad.isnan().all() for own in used)
        assert all(torch.equal(memory[own].residual, rest) for own, rest in left.items())
    for used_now, remaining in [({0, 1}, {2}), ({0, 1, 2}, set()), ({0, 1}, set())]:
        before = set(memory)
        own = backward(used_now)
        for name, parameter in names.items():
            if parameter.grad is None:
                assert int(name.split(".")[1]) not in used_now
                continue
            rest = left[parameter].view_as(parameter) * (_SCALE if parameter in before else 0.0)
            mean = (own[name] + rest) / dist.get_world_size()
            dist.all_reduce(mean)
            assert torch.allclose(parameter.grad, mean, rtol=1e-12)
        expected = {own for index in remaining for own in module.branches[index].parameters()}
        assert set(memory) == expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_residuals_are_added_in_the_next_exact_step_that_uses_them(ranks: int) -> None:
    """All gradients are exact: in a group of one rank, and because all tensors are small."""
    run_ranks(_returned, ranks)
