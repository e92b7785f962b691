"""What the workers of a group send each other in one bucket of a GTC step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hier.algorithms.coding import (
    Coding,
    add_bitmap_signs_,
    bitmap_words,
    choose_coding,
    dense_dtype,
    words_to_bitmap,
    words_to_signs,
)
from lightning_hier.algorithms.threshold import add_signs_, segments, select_words
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.worker import TensorMemory


@dataclass
class Selection:
    """What this worker would send of one tensor.

    Attributes:
        flat: the tensor's place in the bucket, holding residual plus gradient.
        memory: its residual and threshold.
        parts: the segments of the tensor, one for each index space of 31 bits.
        words: the selected elements of each segment.
        facts: one number for each segment, told to the group: the count of its words, as
            ``-1 - count`` where this worker has no gradient for the tensor; or, before there is a
            threshold, the root mean square of the gradient, negated where it has none.
        finite: whether all values are.
        skipped: set once the group's facts are known: no worker has a gradient for the tensor.
        sent: likewise: elements sent by all workers.
        group_rms: likewise: root mean square of the gradients of all workers.

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
    def of(cls, flat: Tensor, memory: TensorMemory, *, absent: bool) -> Selection:
        """Add the residual to the gradient in ``flat``, in place, and select.

        Where this worker has no gradient (``absent``) while others have, ``flat`` counts as DDP
        counts it: zero, or what an earlier backward pass has left in ``.grad``.
        """
        if memory.threshold is None:
            norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
            rms = norm / math.sqrt(max(flat.numel(), 1))
            return cls(flat, memory, [], [], [-rms if absent else rms], math.isfinite(norm))
        flat.add_(memory.residual)
        parts = list(segments(flat.numel()))
        words, largest = [], []
        for part in parts:
            found, magnitude = select_words(flat[part], memory.threshold)
            words.append(found)
            largest.append(magnitude)
        counts = [float(found.numel()) for found in words]
        facts = [-1.0 - count for count in counts] if absent else counts
        return cls(flat, memory, parts, words, facts, all(map(math.isfinite, largest)))

    def learn(self, facts: Tensor) -> Tensor:
        """Take in the group's facts, (P, segments); returns the counts of the words, int64."""
        if self.memory.threshold is None:
            self.group_rms = float(facts.square().mean().sqrt())
            self.skipped = bool((facts <= 0.0).all())
            return torch.zeros_like(facts, dtype=torch.int64)
        self.skipped = bool((facts < 0).all())
        counts = torch.where(facts < 0, -1 - facts, facts).long()
        self.sent = 0 if self.skipped else int(counts.sum())
        return counts


@dataclass
class _Part:
    """One segment on its way: how it is coded and where it lies in each rank's payload."""

    selection: Selection
    segment: slice
    words: Tensor
    counts: list[int]
    coding: Coding

    @property
    def numel(self) -> int:
        return int(self.segment.stop - self.segment.start)

    def length(self, position: int) -> int:
        """Payload words that the rank at ``position`` sends."""
        if self.coding is Coding.WORDS:
            return self.counts[position]
        return bitmap_words(self.numel)

    def payload(self) -> Tensor:
        return (
            self.words if self.coding is Coding.WORDS else words_to_bitmap(self.words, self.numel)
        )

    def add_signs_(self, signs: Tensor, payload: Tensor) -> None:
        if self.coding is Coding.WORDS:
            add_signs_(signs, payload)
        else:
            add_bitmap_signs_(signs, payload)


class Payload:
    """The exchange of one bucket: gathered words and bitmaps, summed signs, first gradients.

    Collectives are started at construction; all ranks of the group must construct it in the same
    order, with the same facts.
    """

    def __init__(self, selections: list[Selection], facts: Tensor, channel: Channel) -> None:
        """Choose the codings from ``facts`` (P, all segments of the bucket) and start sending."""
        self._channel = channel
        self._selections = selections
        self._gathered: list[_Part] = []
        self._dense: list[_Part] = []
        self._first: list[Selection] = []
        self._plan(facts)
        self._pending = [
            pending
            for pending in (self._send_gathered(), self._send_dense(), self._send_first())
            if pending is not None
        ]

    def _plan(self, facts: Tensor) -> None:
        column = 0
        for selection in self._selections:
            width = len(selection.facts)
            counts = selection.learn(facts[:, column : column + width])
            column += width
            if selection.skipped:
                continue
            if selection.memory.threshold is None:
                self._first.append(selection)
                continue
            for i, segment in enumerate(selection.parts):
                own = counts[:, i].tolist()
                size = segment.stop - segment.start
                coding = choose_coding(max(own), size, self._channel.size)
                part = _Part(selection, segment, selection.words[i], own, coding)
                if coding is Coding.DENSE:
                    self._dense.append(part)
                elif coding is not Coding.NOTHING:
                    self._gathered.append(part)

    def _send_gathered(self) -> Pending | None:
        if not self._gathered:
            return None
        size = self._channel.size
        longest = max(sum(part.length(p) for part in self._gathered) for p in range(size))
        device = self._gathered[0].words.device
        # gloo gathers equal lengths only.
        own = torch.zeros(longest, dtype=torch.int32, device=device)
        payload = torch.cat([part.payload() for part in self._gathered])
        own[: payload.numel()] = payload
        self._received = own.new_empty(size * longest)
        return self._channel.all_gather(self._received, own, "gradients")

    def _send_dense(self) -> Pending | None:
        if not self._dense:
            return None
        dtype = dense_dtype(self._channel.size)
        self._signs = torch.cat(
            [words_to_signs(part.words, part.numel, dtype) for part in self._dense]
        )
        return self._channel.all_reduce_(self._signs, "gradients")

    def _send_first(self) -> Pending | None:
        if not self._first:
            return None
        flats = [selection.flat for selection in self._first]
        self._first_mean = torch.cat(flats).div_(self._channel.size)
        return self._channel.all_reduce_(self._first_mean, "gradients")

    def wait(self) -> None:
        """Wait for all that is under way."""
        for pending in self._pending:
            pending.wait()

    def write_means(self) -> None:
        """Overwrite every tensor of the bucket with the mean of what the group sent."""
        for selection in self._selections:
            selection.flat.zero_()
        self._add_gathered()
        self._add_dense()
        for selection in self._selections:
            if selection.memory.threshold is not None:
                # Whole numbers until here: the mean is the same for every coding and rank.
                selection.flat.mul_(selection.memory.threshold / self._channel.size)
        if self._first:
            flats = [selection.flat for selection in self._first]
            sizes = [flat.numel() for flat in flats]
            torch._foreach_copy_(flats, list(self._first_mean.split(sizes)))

    def _add_gathered(self) -> None:
        if not self._gathered:
            return
        for position, row in enumerate(self._received.view(self._channel.size, -1)):
            offset = 0
            for part in self._gathered:
                length = part.length(position)
                signs = part.selection.flat[part.segment]
                part.add_signs_(signs, row[offset : offset + length])
                offset += length

    def _add_dense(self) -> None:
        if not self._dense:
            return
        sizes = [part.numel for part in self._dense]
        for part, signs in zip(self._dense, self._signs.split(sizes), strict=True):
            part.selection.flat[part.segment].copy_(signs)
