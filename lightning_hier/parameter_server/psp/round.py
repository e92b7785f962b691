"""One round of a server: who has responded, and the gradients for the next update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


class Round:
    """What has come for one update of a block (Algorithm 1, server, lines 4 to 12).

    Gradients are kept by worker until the round ends and added in order of rank, so that the sum
    does not depend on the order in which they came: runs in which every round has all gradients are
    equal to the last bit. That costs at most one block for each worker, so one model a rank in all.
    A second gradient of the same worker is added to its first as it comes.

    Attributes:
        responded: workers that have pushed or abstained.
        newest: largest timestamp of what has come; -1: nothing has.
        gradients: d, number of gradients.
        began: when the first response came; None: none has.
        enough_since: since when c gradients have been there; None: they have not.

    """

    def __init__(self) -> None:
        self.responded: set[int] = set()
        self.newest = -1
        self.gradients = 0
        self.began: float | None = None
        self.enough_since: float | None = None
        self._sums: dict[int, Tensor] = {}
        self._absent: set[int] | None = None

    @property
    def givers(self) -> set[int]:
        """Workers of which a gradient is there."""
        return set(self._sums)

    def respond(self, worker: int, timestamp: int, now: float) -> None:
        """Note that a worker has pushed or abstained."""
        self.responded.add(worker)
        self.newest = max(self.newest, timestamp)
        self.began = now if self.began is None else self.began

    def add(self, worker: int, gradient: Tensor, absent: Sequence[int]) -> None:
        """Keep a gradient.

        Args:
            worker: that has pushed it.
            gradient: flat; kept as it is, and not changed.
            absent: positions of the parameters that have none; it is zero there.

        """
        earlier = self._sums.get(worker)
        self._sums[worker] = gradient if earlier is None else _wide(earlier).add_(gradient)
        self._absent = set(absent) if self._absent is None else self._absent & set(absent)
        self.gradients += 1

    def mean(self) -> Tensor:
        """``g / d``, flat; numbers of half precision are added up in single."""
        workers = sorted(self._sums)
        total = _wide(self._sums[workers[0]])
        for worker in workers[1:]:
            total.add_(self._sums[worker])
        return total.div_(self.gradients)

    def takes_part(self, position: int) -> bool:
        """Whether any gradient has the parameter at a position of the block."""
        return self._absent is None or position not in self._absent


def _wide(gradient: Tensor) -> Tensor:
    dtype = torch.float32 if gradient.dtype in _HALF else gradient.dtype
    return gradient.to(dtype, copy=True)
