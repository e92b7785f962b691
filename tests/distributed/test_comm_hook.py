"""Communication hooks of DDP and of users reduce gradients inside the group only."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import lightning_hier as lh
from tests.distributed.gradients import inputs, start, tower
from tests.ranks import run_ranks

Gradients = dict[str, torch.Tensor]


def _one_step(config: Any) -> tuple[Gradients, Gradients, int, int]:
    """Gradients of this rank, gradients after the hook, and the bytes of both tiers."""
    run = start(config, tower(), group_size=2)
    batch = inputs(0)
    own = run.own_gradients(batch)
    run.step(batch)
    traffic = run.communicators.traffic
    reduced = {name: p.grad for name, p in run.model.module.named_parameters()}
    return (
        own,
        reduced,
        traffic.total("group").payload_bytes,
        traffic.total("across").payload_bytes,
    )


# Settings, tolerance and bytes of an element.
CASES = [
    (lh.AllReduce(), 1e-12, 8),
    (lh.CommHook(hook=default_hooks.allreduce_hook), 1e-12, 8),
    (lh.CommHook(hook=default_hooks.fp16_compress_hook, bytes_per_element=2.0), 2e-3, 2),
]


def _steps() -> list[tuple[Gradients, Gradients, int, int]]:
    return [_one_step(config) for config, *_ in CASES]


def test_gradients_are_the_mean_of_the_group() -> None:
    for (_, rtol, bytes_per_element), *results in zip(CASES, *run_ranks(_steps, 4), strict=True):
        for group in (results[:2], results[2:]):
            for name, own in group[0][0].items():
                mean = (own + group[1][0][name]) / 2
                for _, reduced, in_group, across in group:
                    torch.testing.assert_close(reduced[name], mean, rtol=rtol, atol=rtol)
                    assert across == 0
                    assert in_group == bytes_per_element * sum(g.numel() for g in reduced.values())
        between_groups = results[0][1]["layers.0.weight"] - results[2][1]["layers.0.weight"]
        assert between_groups.abs().max() > 0.01


def _power_sgd() -> tuple[torch.Tensor, bool]:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    config = lh.CommHook(hook=powerSGD_hook.powerSGD_hook, state=state)
    run = start(config, tower(width=24), group_size=2)
    for step in range(5):
        run.step(inputs(step, width=24))
    same_group = state.process_group is run.communicators.group.group
    return run.model.module.layers[0].weight.grad, same_group


def test_power_sgd_without_a_group_gets_ours() -> None:
    results = run_ranks(_power_sgd, 4)
    assert all(same_group for _, same_group in results)
    gradients = [gradient for gradient, _ in results]
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[2], gradients[3])
    assert not torch.equal(gradients[0], gradients[2])
