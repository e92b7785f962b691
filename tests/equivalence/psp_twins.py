"""Float64 twins of PSP-SGD: servers and workers in one process, from the paper's equations.

A twin shares no code with the package. It has no clock: the test lists the gradients of each update
of the servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.equivalence.optimizer_twins import Adam, Sgd

Values = list[Tensor]
# Gradients of a worker's loss at a step, for given parameters.
Gradients = Callable[[int, int, Values], Values]


def descend(w: Values, g: Sequence[Tensor], rule: Sgd | Adam, factor: float = 1.0) -> Values:
    """Return ``w - factor eta Updater(g)`` (eq. 3)."""
    return [
        one - factor * rule.lr * rule.direction(index, one, gradient)
        for index, (one, gradient) in enumerate(zip(w, g, strict=True))
    ]


def synchronous(
    start: Values, gradients: Gradients, rule: Sgd | Adam, *, workers: int, steps: int
) -> Values:
    """Synchronous SGD (eq. 2 to 5) with the mean gradient of all workers at every step."""
    return _together(start, gradients, rule, workers, steps, lambda same: same.mean(0))


def summed(
    start: Values, gradients: Gradients, rule: Sgd | Adam, *, workers: int, steps: int
) -> Values:
    """One optimizer on the sum of the gradients of all workers."""
    return _together(start, gradients, rule, workers, steps, lambda same: same.sum(0))


def _together(
    start: Values,
    gradients: Gradients,
    rule: Sgd | Adam,
    workers: int,
    steps: int,
    combine: Callable[[Tensor], Tensor],
) -> Values:
    w = [value.clone() for value in start]
    for step in range(steps):
        own = [gradients(worker, step, w) for worker in range(workers)]
        w = descend(w, [combine(torch.stack(same)) for same in zip(*own, strict=True)], rule)
    return w


@dataclass(frozen=True)
class Push:
    """A gradient of an update: its worker, the step of the worker, and the model version."""

    worker: int
    step: int
    version: int


def partial(
    start: Values, gradients: Gradients, rule: Sgd | Adam, updates: Sequence[Sequence[Push]]
) -> Values:
    """Lines 4 to 14 of the server in Algorithm 1: each update is d eta Updater(g / d).

    All servers apply the same updates.
    """
    versions = [[value.clone() for value in start]]
    for pushes in updates:
        own = [gradients(push.worker, push.step, versions[push.version]) for push in pushes]
        d = len(own)
        g = [torch.stack(same).sum(0) for same in zip(*own, strict=True)]
        versions.append(descend(versions[-1], [one / d for one in g], rule, factor=d))
    return versions[-1]
