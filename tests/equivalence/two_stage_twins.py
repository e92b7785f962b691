"""Float64 twins of two-stage ASGD, from its equations: a device, its node and the master.

The model is linear, and its loss half the mean of the squared errors, so that gradients have a
closed form. Time is not in the twins: the test says when a node pushes and when it hears again.
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
"""What an optimizer makes of weights and a gradient: the new weights."""


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs (SAMPLES, FEATURES) and targets (SAMPLES,) of a device's mini-batch."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(SAMPLES, generator=generator, dtype=torch.float64)


def gradient(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Of half the mean squared error."""
    return inputs.T @ (inputs @ weights - targets) / len(targets)


def sgd(eta: float) -> Rule:
    """Eq. 2."""
    return lambda weights, g: weights - eta * g


def adam(eta: float) -> Rule:
    """One Adam with state of its own."""
    twin = Adam(eta)
    return lambda weights, g: weights - eta * twin.direction(0, weights, g)


@dataclass
class NodeTwin:
    """A node of one device: w, the device's copy of it, and what has been added up."""

    weights: Tensor
    rule: Rule
    rank: int
    total: Tensor = field(default_factory=lambda: torch.zeros(FEATURES, dtype=torch.float64))
    count: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.copy = self.weights

    def step(self, *, refresh: bool = True) -> None:
        """Eq. 2 and 3 for the device's next mini-batch; ``refresh``: it takes w afterwards."""
        g = gradient(self.copy, *batch(self.rank, self.steps))
        self.weights = self.rule(self.weights, g)
        self.total = self.total + g
        self.count += 1
        self.steps += 1
        if refresh:
            self.copy = self.weights

    def push(self) -> tuple[Tensor, int]:
        """The sum and its count; both begin anew."""
        pushed = self.total, self.count
        self.total, self.count = torch.zeros_like(self.total), 0
        return pushed

    def take(self, weights: Tensor) -> None:
        """The master's weights, while the device waits for them."""
        self.weights = self.copy = weights


@dataclass
class MasterTwin:
    """W."""

    weights: Tensor
    rule: Rule
    pushes: int = 0

    def take(self, total: Tensor, count: int) -> Tensor:
        """Eq. 4 with gamma = eta / count (eq. 5): for SGD, a step with the mean gradient."""
        self.weights = self.rule(self.weights, total / count)
        self.pushes += 1
        return self.weights


def plan(steps: int, push_period: int) -> list[int]:
    """How many mini-batches each push of a node's epoch holds: the last one may be short."""
    whole, rest = divmod(steps, push_period)
    return [push_period] * whole + [rest] * (rest > 0)


def train_waiting(
    master: MasterTwin,
    nodes: Mapping[int, NodeTwin],
    order: Sequence[int],
    plans: Mapping[int, list[int]],
) -> None:
    """One epoch without double buffering, under an order lock.

    Pushes come round by round in ``order``, and nodes that have none left are passed over. A node
    computes nothing from its push to the answer.

    Args:
        master: its weights are those of all nodes in the end.
        nodes: by name.
        order: of the nodes' first pushes.
        plans: for each node the sizes of its pushes.

    """
    for node, size in _turns(order, plans):
        for _ in range(size):
            nodes[node].step()
        nodes[node].take(master.take(*nodes[node].push()))
    for own in nodes.values():
        own.take(master.weights)


def _turns(order: Sequence[int], plans: Mapping[int, list[int]]) -> Iterator[tuple[int, int]]:
    left = {node: list(plans[node]) for node in order}
    for node in cycle(order):
        if not any(left.values()):
            return
        if left[node]:
            yield node, left[node].pop(0)
