"""With concurrent processes, every gradient reaches the master of two-stage ASGD exactly once.

Gradients are whole numbers, so that their sums are exact.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.parameter_server.two_stage.engine import TwoStageASGD
from lightning_hier.parameter_server.two_stage.master import Push
from tests.distributed.two_stage_world import two_stage_world
from tests.ranks import run_ranks
from tests.waiting import wait_until

SEGMENT = 50_000


def _record_pushes(engine: TwoStageASGD, seen: Tensor) -> None:
    """On rank 0, add up all pushes that the master applies, and their numbers of gradients."""
    if not engine.masters:
        return

    def update(pushes: Sequence[Push]) -> bool:
        for push in pushes:
            seen[:-1] += push.total
            seen[-1] += push.count
        return True

    engine.masters[0]._update = update  # type: ignore[method-assign]


def _wait_for_push(engine: TwoStageASGD, *, after: float) -> float:
    """Wait until the node has pushed more gradients than ``after``, and return how many it has.

    A node on a busy machine would otherwise push hardly ever, and many gradients at once.
    """

    def pushed() -> float:
        return engine.metrics()["hier/two_stage/node/gradients"]

    wait_until(lambda: pushed() > after, "a push")
    return pushed()


def _value(step: int, rank: int) -> float:
    """Value of all elements of a rank's gradient in a step."""
    return float((7 * step + rank) % 5 + 1)


def _race(
    steps: int, group_size: int, settings: dict[str, Any]
) -> tuple[Tensor, dict[str, float], float]:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    parameter = nn.Parameter(torch.zeros(world_size * SEGMENT))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    seen = torch.zeros(len(parameter) + 1, dtype=torch.float64)
    record = partial(_record_pushes, seen=seen)
    with two_stage_world([optimizer], group_size, before=record, **settings) as world:
        total = pushed = 0.0
        for step in range(steps):
            value = _value(step, rank)
            gradient = torch.zeros_like(parameter)
            gradient[rank * SEGMENT : (rank + 1) * SEGMENT] = value
            parameter.grad = gradient
            world.engine.workers[0].step()
            total += value
            if rank == 0 and step % 10 == 9:
                pushed = _wait_for_push(world.engine, after=pushed)
        world.engine.rendezvous()
        return seen, world.engine.metrics(), total


def _segments(seen: Tensor) -> list[Tensor]:
    return list(seen[:-1].split(SEGMENT))


@pytest.mark.parametrize("without", ["order_locking", "double_buffering"])
def test_no_gradient_is_lost_or_counted_twice(without: str) -> None:
    steps, world_size, group_size = 40, 4, 2
    results = run_ranks(_race, 4, steps, group_size, {"push_period": 3, without: False})
    seen, metrics, _ = results[0]
    for segment, (_, _, total) in zip(_segments(seen), results, strict=True):
        assert torch.equal(segment, torch.full_like(segment, total))
    assert seen[-1] == steps * world_size
    # Nodes have pushed several times, so that devices have added gradients during pushes.
    assert metrics["hier/two_stage/master/version"] > world_size
    nodes = range(0, world_size, group_size)
    pushed = [results[node][1]["hier/two_stage/node/gradients"] for node in nodes]
    assert sum(pushed) == steps * world_size
