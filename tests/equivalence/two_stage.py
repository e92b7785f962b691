"""A linear problem for two-stage ASGD, and its serial order by the reference.

The loss is half the mean squared error, so that gradients have a closed form. There is no clock:
the test decides when a node pushes and when it pulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.reference import Node

FEATURES, SAMPLES = 6, 5
START = torch.linspace(-1.0, 1.0, FEATURES, dtype=torch.float64)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs (SAMPLES, FEATURES) and targets (SAMPLES,) of a device's mini-batch."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(SAMPLES, generator=generator, dtype=torch.float64)


class ReferenceMaster:
    """The master's weights W, and their optimizer."""

    def __init__(self, make: Any) -> None:
        self.W = [Parameter(START.clone())]
        self.optimizer = make(self.W)
        self.pushes = 0

    @property
    def weights(self) -> Tensor:
        return self.W[0].detach().clone()


class OneDevice:
    """A node of the reference with one device, which computes with a copy of the replica."""

    def __init__(self, make: Any, rank: int = 0) -> None:
        w = [Parameter(START.clone())]
        self.node, self.rank, self.steps = Node(w, [make(w)]), rank, 0
        self.copy = self.weights

    @property
    def weights(self) -> Tensor:
        """The replica w."""
        return self.node.w[0].detach().clone()

    def step(self, *, refresh: bool = True) -> None:
        """Train on the next mini-batch, and copy w afterwards unless told not to."""
        inputs, targets = batch(self.rank, self.steps)
        self.node.step([inputs.T @ (inputs @ self.copy - targets) / len(targets)])
        self.steps += 1
        if refresh:
            self.copy = self.weights

    def push(self, master: ReferenceMaster) -> Tensor:
        """Push to the master, and return its reply."""
        self.node.push(master.W, master.optimizer)
        master.pushes += 1
        return master.weights

    def pull(self, weights: Tensor) -> None:
        """Take the reply as the replica. The device copies it at its next refresh."""
        self.node.pull([weights])


def plan(steps: int, push_period: int) -> list[int]:
    """Number of mini-batches in each push of an epoch of a node. The last push may be short."""
    whole, rest = divmod(steps, push_period)
    return [push_period] * whole + [rest] * (rest > 0)


def train_waiting(
    master: ReferenceMaster,
    nodes: Mapping[int, OneDevice],
    order: Sequence[int],
    plans: Mapping[int, list[int]],
) -> None:
    """Train one epoch without double buffering, with order locking.

    Nodes push in ``order``, round by round. Nodes without further pushes are skipped. A node
    computes nothing between its push and the response.

    Args:
        master: the master. At the end, all nodes have its weights.
        nodes: the nodes by name.
        order: order of the first pushes.
        plans: sizes of the pushes of each node.

    """
    for name, size in _turns(order, plans):
        for _ in range(size):
            nodes[name].step()
        nodes[name].pull(nodes[name].push(master))
        nodes[name].copy = nodes[name].weights
    for own in nodes.values():
        own.pull(master.weights)
        own.copy = own.weights


def _turns(order: Sequence[int], plans: Mapping[int, list[int]]) -> Iterator[tuple[int, int]]:
    remaining = {node: list(plans[node]) for node in order}
    for node in cycle(order):
        if not any(remaining.values()):
            return
        if remaining[node]:
            yield node, remaining[node].pop(0)
