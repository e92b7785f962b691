"""Gradients that workers push: facts, rounds, the end of waits, and counts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_hier.parameter_server.updater import Hyperparameters

# A sum of many gradients in half precision would lose small ones, and could overflow in float16.
_HALF = (torch.float16, torch.bfloat16)
# Number of gradients over which staleness is averaged for logging.
_WINDOW = 1000


@dataclass(frozen=True, kw_only=True)
class PushFacts:
    """Facts of a PUSH, the fields of its JSON object.

    Attributes:
        version: timestamp of the shard with which the gradient was computed.
        collectives_done: number of the last collective that has ended for the worker.
        steps: number of steps of the worker.
        hyperparameters: hyperparameters of the worker's optimizer, for each parameter group.
        absent: positions of the shard's parameters without a gradient.

    """

    version: int
    steps: int
    hyperparameters: Hyperparameters
    absent: list[int]
    collectives_done: int


@dataclass
class Countdown:
    """End of a wait for messages of several ranks, by c and tau_1, or b and tau_2.

    Attributes:
        since: time at which enough messages had arrived, or None.

    """

    since: float | None = None

    def is_over(self, *, complete: bool, enough: bool, timeout_s: float, now: float) -> bool:
        """Whether all messages have arrived, or enough of them ``timeout_s`` seconds ago."""
        # More may be needed than before: workers that return from a collective count again.
        if not enough:
            self.since = None
        elif self.since is None:
            self.since = now
        return complete or (self.since is not None and now >= self.since + timeout_s)


class Round:
    """The pushes for one update of a shard (Algorithm 1, server, lines 4 to 12).

    Gradients are kept by worker until the round ends and added in order of rank. The sum does not
    depend on the order of arrival, so runs in which every round has all gradients are bit for bit
    equal. This costs at most one shard per worker, in total one model per rank. A second gradient
    of the same worker is added to its first one on arrival.

    Attributes:
        responded: workers that have pushed or abstained.
        newest: largest timestamp of the responses, or -1 if there are none.
        gradients: d, number of gradients.
        sums: gradient of each worker.
        absent: positions of parameters without any gradient.
        began: time of the first response, or infinity if there is none.
        countdown: countdown to the end, which starts when c gradients have been pushed.

    """

    def __init__(self) -> None:
        self.responded: set[int] = set()
        self.newest = -1
        self.gradients = 0
        self.sums: dict[int, Tensor] = {}
        self.absent: set[int] | None = None
        self.began = math.inf
        self.countdown = Countdown()

    def add(self, worker: int, gradient: Tensor, absent: Sequence[int]) -> None:
        """Store a gradient.

        Args:
            worker: worker that has pushed it.
            gradient: flat gradient, stored by reference and not changed.
            absent: positions of parameters without a gradient, where it is zero.

        """
        earlier = self.sums.get(worker)
        self.sums[worker] = gradient if earlier is None else _copy_wide(earlier).add_(gradient)
        # A parameter with a gradient of any worker is updated.
        self.absent = set(absent) if self.absent is None else self.absent & set(absent)
        self.gradients += 1

    def mean(self) -> Tensor:
        """``g / d``, flat. Gradients in half precision are summed in single precision."""
        first, *others = sorted(self.sums)
        total = _copy_wide(self.sums[first])
        for worker in others:
            total.add_(self.sums[worker])
        return total.div_(self.gradients)


@dataclass
class ServerCounts:
    """Counts of a rank's server, written by the server loop and read by any thread.

    A pushed gradient is counted once, as ``used``, ``dropped`` or ``nonfinite``.

    Attributes:
        used: gradients in an update or in the current round.
        dropped: gradients that arrived too late (Algorithm 1, server, line 8).
        nonfinite: gradients and updates that were discarded because of NaN or inf.
        rounds: updates of shards.
        in_rounds: gradients in these updates.
        staleness: versions between a shard and the gradients computed with it, of the last ones.

    """

    used: int = 0
    dropped: int = 0
    nonfinite: int = 0
    rounds: int = 0
    in_rounds: int = 0
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def metrics(self) -> dict[str, float]:
        """All counts by metric name."""
        # A copy, which no other thread can interrupt.
        staleness = tuple(self.staleness)
        return {
            "hier/psp/staleness": sum(staleness) / max(1, len(staleness)),
            "hier/psp/dropped": float(self.dropped),
            "hier/psp/nonfinite": float(self.nonfinite),
            "hier/psp/rounds": float(self.rounds),
            "hier/psp/gradients_per_round": self.in_rounds / max(1, self.rounds),
        }


def _copy_wide(gradient: Tensor) -> Tensor:
    # Always a copy, because the memory of a received gradient is read-only.
    dtype = torch.float32 if gradient.dtype in _HALF else gradient.dtype
    return gradient.to(dtype, copy=True)
