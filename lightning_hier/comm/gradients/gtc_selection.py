"""The elements of one tensor that a worker selects in a GTC step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.payload import segments
from lightning_hier.comm.worker import TensorMemory


@dataclass
class Selection:
    """Selection of one worker from one tensor.

    The last three attributes are set by :meth:`add_facts`.

    Attributes:
        flat: the tensor's part of the bucket, with residual plus gradient.
        memory: its residual and threshold.
        parts: the segments of the tensor, one for each index space of 31 bits.
        words: the selected elements of each segment.
        facts: one number for each segment, exchanged in the group: the count of its words, as
            ``-1 - count`` where this worker has no gradient for the tensor; or, before there is a
            threshold, the root mean square of the gradient, negated where it has none.
        finite: whether all values are finite.
        skipped: whether no worker of the group has a gradient for the tensor.
        sent: elements that all workers send.
        group_rms: root mean square of the gradients of all workers.

    """

    flat: Tensor
    memory: TensorMemory
    parts: list[slice]
    words: list[Tensor]
    facts: list[float]
    finite: bool
    skipped: bool = False
    sent: int = 0
    group_rms: float = 0.0

    @classmethod
    def of(cls, flat: Tensor, memory: TensorMemory, *, absent: bool, scale: float) -> Selection:
        """Divide the gradient in ``flat`` by ``scale``, add the residual, in place, and select.

        If only other workers have a gradient (``absent``), ``flat`` counts as in DDP: zero, or the
        finite values of an earlier backward pass in ``.grad``.
        """
        if memory.threshold is None:
            if scale != 1.0:
                flat.div_(scale)
            norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
            rms = norm / math.sqrt(max(flat.numel(), 1))
            return cls(flat, memory, [], [], [-rms if absent else rms], math.isfinite(norm))
        parts = list(segments(flat.numel()))
        words = []
        finite = True
        for part in parts:
            values, residual = flat[part], memory.residual[part]
            found, sound = kernels_for(values, residual).encode_(
                values, residual, memory.threshold, scale=scale
            )
            words.append(found)
            finite = finite and sound
        counts = [float(found.numel()) for found in words]
        facts = [-1.0 - count for count in counts] if absent else counts
        return cls(flat, memory, parts, words, facts, finite)

    def add_facts(self, facts: Tensor) -> Tensor:
        """Add the facts of all workers, (G, segments); returns the counts of words, int64."""
        if self.memory.threshold is None:
            self.group_rms = float(facts.square().mean().sqrt())
            self.skipped = bool((facts <= 0.0).all())
            return torch.zeros_like(facts, dtype=torch.int64)
        self.skipped = bool((facts < 0).all())
        counts = torch.where(facts < 0, -1 - facts, facts).long()
        self.sent = 0 if self.skipped else int(counts.sum())
        return counts
