"""One round of a server: the pushes of workers for the next update of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class PushFacts:
    """Facts of a PUSH: the fields of its JSON object.

    Attributes:
        version: timestamp of the block with which the gradient was computed.
        final: number of the last rendezvous that has ended for the worker.
        collectives_done: number of the last live-rank collective that has ended for the worker.
        steps: number of steps of the worker; the most advanced worker has made most.
        hyperparameters: of the worker's optimizer, for each parameter group.
        absent: positions in the block of the parameters without a gradient.

    """

    version: int
    final: int
    steps: int
    hyperparameters: list[dict[str, Any]] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    collectives_done: int = 0

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PushFacts:
        """Read the facts of a message.

        Raises:
            ValueError: they are not those of a PUSH.

        """
        try:
            read = cls(**facts)
        except TypeError as error:
            raise ValueError(f"not the facts of a push: {sorted(facts)}") from error
        for value in (read.absent, read.hyperparameters):
            if not isinstance(value, list):
                raise ValueError(f"expected a list in the facts of a push, got {value!r}")
        numbers = [read.version, read.final, read.collectives_done, read.steps, *read.absent]
        if not all(type(number) is int for number in numbers):
            raise ValueError("version, final, steps and absent of a push are whole numbers")
        if not all(isinstance(group, dict) for group in read.hyperparameters):
            raise ValueError("hyperparameters of a push are one object for each group")
        return read


class Round:
    """The pushes for one update of a block (Algorithm 1, server, lines 4 to 12).

    Gradients are kept by worker until the round ends and added in order of rank, so that the sum
    does not depend on the order in which they arrive: runs in which every round has all gradients
    are equal to the last bit. That costs at most one block for each worker, so one model a rank in
    all. A second gradient of the same worker is added to its first on arrival.

    Attributes:
        responded: workers that have pushed or abstained.
        newest: largest timestamp of the responses; -1: there is none.
        gradients: d, number of gradients.
        sums: gradient of each worker.
        absent: positions of the parameters that no gradient has.
        began: time of the first response; infinite: there is none.
        enough_since: time at which c gradients had been pushed; None: they have not.

    """

    def __init__(self) -> None:
        self.responded: set[int] = set()
        self.newest = -1
        self.gradients = 0
        self.sums: dict[int, Tensor] = {}
        self.began = math.inf
        self.enough_since: float | None = None
        self.absent: set[int] | None = None

    def respond(self, worker: int, timestamp: int, now: float) -> None:
        """Note that a worker has pushed or abstained."""
        self.responded.add(worker)
        self.newest = max(self.newest, timestamp)
        self.began = min(self.began, now)

    def add(self, worker: int, gradient: Tensor, absent: Sequence[int]) -> None:
        """Keep a gradient.

        Args:
            worker: that has pushed it.
            gradient: flat; kept as it is, and not changed.
            absent: positions of the parameters without a gradient; it is zero there.

        """
        earlier = self.sums.get(worker)
        self.sums[worker] = gradient if earlier is None else _copy_wide(earlier).add_(gradient)
        self.absent = set(absent) if self.absent is None else self.absent & set(absent)
        self.gradients += 1

    def mean(self) -> Tensor:
        """``g / d``, flat; gradients of half precision are summed in single precision."""
        first, *others = sorted(self.sums)
        total = _copy_wide(self.sums[first])
        for worker in others:
            total.add_(self.sums[worker])
        return total.div_(self.gradients)


def _copy_wide(gradient: Tensor) -> Tensor:
    dtype = torch.float32 if gradient.dtype in _HALF else gradient.dtype
    return gradient.to(dtype, copy=True)
