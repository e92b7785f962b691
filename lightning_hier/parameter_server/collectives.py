"""Sums, gathers and broadcasts among the ranks that are still there, made of meetings.

A collective of the process group waits for every rank of the job, a dead one included. These do
not, so they serve validation, metrics and checkpoints while a parameter server trains. They are
meant for small things at an epoch's end: everything goes through one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.meeting import Meetings, Word

_REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.double().mean(0),
    "mean": lambda stacked: stacked.double().mean(0),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
    "product": lambda stacked: stacked.prod(0),
}


class LiveCollectives:
    """Collectives of the ranks that are there. Every one of them must call each, in one order."""

    def __init__(self, meetings: Meetings) -> None:
        """Meet through ``meetings``."""
        self._meetings = meetings

    def barrier(self) -> None:
        """Wait for all."""
        self._meetings.meet()

    def broadcast(self, value: Any, source: int) -> Any:
        """The ``value`` (anything that JSON can say) of rank ``source``, or of the lowest there is.

        Raises:
            TypeError: JSON can't say it. Other objects would have to be unpickled.

        """
        words = self._meetings.meet(value)
        return words[source if source in words else min(words)].facts

    def decide(self, decision: bool, *, all_agree: bool) -> bool:
        """Whether all (or any) of the ranks decide for it."""
        votes = [bool(word.facts) for word in self._meetings.meet(bool(decision)).values()]
        return all(votes) if all_agree else any(votes)

    def gather(self, tensor: Tensor, group: object = None) -> list[Tensor]:
        """The tensors of all ranks in order of rank; shapes may differ.

        The signature is the one by which torchmetrics gathers the state of a metric; ``group`` is
        of no use here.
        """
        flat = tensor.detach().reshape(-1).cpu()
        if flat.dtype == torch.bool:
            flat = flat.to(torch.uint8)  # messages have no truth values
        words = self._meetings.meet([str(tensor.dtype), *tensor.shape], flat)
        return [_shaped(word, tensor) for _, word in sorted(words.items())]

    def reduce(self, tensor: Tensor, operation: object) -> Tensor:
        """Combine tensors of one shape over the ranks, in order of rank.

        Args:
            tensor: of this rank.
            operation: sum, mean, avg, min, max or product, as text or as torch's ``ReduceOp``; None
                is a sum.

        Raises:
            ValueError: another operation.

        """
        name = "sum" if operation is None else str(operation).rsplit(".", 1)[-1].lower()
        if name not in _REDUCTIONS:
            raise ValueError(
                f"can't reduce by {operation!r} over ranks; one of {', '.join(_REDUCTIONS)} can"
            )
        return _REDUCTIONS[name](torch.stack(self.gather(tensor))).to(tensor.dtype)


def _shaped(word: Word, like: Tensor) -> Tensor:
    _, *shape = word.facts
    values = torch.empty(0) if word.payload is None else word.payload
    return values.to(like.dtype).reshape(shape).to(like.device, copy=True)
