"""Float64 twins of two-stage ASGD, from its equations: a device, its node and the master.

The model is linear and the loss is half the mean squared error, so that gradients have a closed
form. The twins have no clock: the test decides when a node pushes and when it gets the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch
from torch import Tensor

from tests.equivalence.optimizer_twins import Adam

FEATURES, SAMPLES = 6, 5

Rule = Callable[[Tensor, Tensor], Tensor]
"""Computes new weights from weights and a gradient."""


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs (SAMPLES, FEATURES) and targets (SAMPLES,) of a device's mini-batch."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(SAMPLES, generator=generator, dtype=torch.float64)


def gradient(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Gradient of half the mean squared error."""
    return inputs.T @ (inputs @ weights - targets) / len(targets)


def sgd(eta: float) -> Rule:
    """A step of SGD (eq. 2)."""
    return lambda weights, g: weights - eta * g


def adam(eta: float) -> Rule:
    """A step of Adam with its own state."""
    twin = Adam(eta)
    return lambda weights, g: weights - eta * twin.direction(0, weights, g)


@dataclass
class NodeTwin:
    """A node of one device: its weights w, the device's copy of them, and the gradient sum."""

    weights: Tensor
    rule: Rule
    rank: int
    total: Tensor = field(default_factory=lambda: torch.zeros(FEATURES, dtype=torch.float64))
    count: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.copy = self.weights

    def step(self, *, refresh: bool = True) -> None:
        """Apply eq. 2 and 3 to the next mini-batch of the device.

        Args:
            refresh: whether the device copies w afterwards.

        """
        g = gradient(self.copy, *batch(self.rank, self.steps))
        self.weights = self.rule(self.weights, g)
        self.total = self.total + g
        self.count += 1
        self.steps += 1
        if refresh:
            self.copy = self.weights

    def push(self) -> tuple[Tensor, int]:
        """Return the gradient sum and its count, and reset both."""
        pushed = self.total, self.count
        self.total, self.count = torch.zeros_like(self.total), 0
        return pushed

    def take(self, weights: Tensor) -> None:
        """Take the master's weights, for which the device waits."""
        self.weights = self.copy = weights


@dataclass
class MasterTwin:
    """The master with its weights W."""

    weights: Tensor
    rule: Rule
    pushes: int = 0

    def take(self, total: Tensor, count: int) -> Tensor:
        """Apply a push, and return W: eq. 4 with gamma = eta / count (eq. 5).

        For SGD, this is a step with the mean gradient.
        """
        self.weights = self.rule(self.weights, total / count)
        self.pushes += 1
        return self.weights


def plan(steps: int, push_period: int) -> list[int]:
    """Number of mini-batches in each push of an epoch of a node. The last push may be short."""
    whole, rest = divmod(steps, push_period)
    return [push_period] * whole + [rest] * (rest > 0)


def train_waiting(
    master: MasterTwin,
    nodes: Mapping[int, NodeTwin],
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
    for node, size in _turns(order, plans):
        for _ in range(size):
            nodes[node].step()
        nodes[node].take(master.take(*nodes[node].push()))
    for own in nodes.values():
        own.take(master.weights)


def _turns(order: Sequence[int], plans: Mapping[int, list[int]]) -> Iterator[tuple[int, int]]:
    remaining = {node: list(plans[node]) for node in order}
    for node in cycle(order):
        if not any(remaining.values()):
            return
        if remaining[node]:
            yield node, remaining[node].pop(0)
