"""Two-stage ASGD with two nodes on real ranks equals the reference.

tests/unit/test_two_stage_device.py tests one node of one device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.distributed.two_stage_world import World, two_stage_world
from tests.equivalence.two_stage import (
    FEATURES,
    START,
    OneDevice,
    ReferenceMaster,
    batch,
    plan,
    train_waiting,
)
from tests.ranks import run_ranks


def _linear() -> nn.Linear:
    module = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(START)
    return module


def _step(world: World, module: nn.Linear, optimizer: torch.optim.Optimizer, step: int) -> None:
    inputs, targets = batch(world.rank, step)
    optimizer.zero_grad()
    loss = 0.5 * (module(inputs).squeeze(1) - targets).square().mean()
    loss.backward()
    world.engine.workers[0].step()


def _train(
    epochs: list[dict[int, int]], rates: list[float], settings: dict[str, Any]
) -> dict[str, Any]:
    module = _linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=rates[0])
    with two_stage_world([optimizer], 1, double_buffering=False, **settings) as world:
        ends, step = [], 0
        for epoch, rate in zip(epochs, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(epoch[world.rank]):
                _step(world, module, optimizer, step)
                step += 1
            world.engine.rendezvous()
            ends.append(module.weight.detach().reshape(-1).clone())
        masters = world.engine.masters
        return {
            "ends": ends,
            "order": masters[0].order.order if masters else None,
            "metrics": world.engine.metrics(),
        }


def test_two_nodes_with_order_locking() -> None:
    """There are two epochs of unequal lengths, with different learning rates."""
    epochs, rates = [{0: 11, 1: 6}, {0: 5, 1: 9}], [0.1, 0.05]
    results = run_ranks(_train, 2, epochs, rates, {"push_period": 4})
    order = results[0]["order"]
    assert sorted(order) == [0, 1]
    sgd = partial(torch.optim.SGD, lr=rates[0])
    master, nodes = ReferenceMaster(sgd), {rank: OneDevice(sgd, rank) for rank in (0, 1)}
    optimizers = [master.optimizer, *(own.node.optimizers[0] for own in nodes.values())]
    for number, (epoch, rate) in enumerate(zip(epochs, rates, strict=True)):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        train_waiting(master, nodes, order, {rank: plan(n, 4) for rank, n in epoch.items()})
        for ours in results:
            torch.testing.assert_close(ours["ends"][number], master.weights, rtol=1e-12, atol=1e-12)
            assert torch.equal(ours["ends"][number], results[0]["ends"][number])
