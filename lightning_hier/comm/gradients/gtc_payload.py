"""What the workers of a group send each other in one bucket of a GTC step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hier.algorithms.coding import (
    Coding,
    bitmap_words,
    choose_coding,
    dense_dtype,
    words_to_bitmap,
)
from lightning_hier.algorithms.decoding import BitmapSigns, DenseSigns, SignedWords, Signs
from lightning_hier.algorithms.encoding import Scratch, encode_, settle_
from lightning_hier.algorithms.threshold import add_signs_, segments
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
    def of(
        cls, flat: Tensor, memory: TensorMemory, scratch: Scratch, *, absent: bool, scale: float
    ) -> Selection:
        """Divide the gradient in ``flat`` by ``scale``, add the residual, in place, and select.

        Where this worker has no gradient (``absent``) while others have, ``flat`` counts as DDP
        counts it: zero, or what an earlier backward pass has left in ``.grad``.
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
            found, sound = encode_(
                flat[part], memory.residual[part], memory.threshold, scratch, scale=scale
            )
            words.append(found)
            finite = finite and sound
        counts = [float(found.numel()) for found in words]
        facts = [-1.0 - count for count in counts] if absent else counts
        return cls(flat, memory, parts, words, facts, finite)

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
    """One segment on its way: how it is coded, where it lies in each rank's payload, what came."""

    selection: Selection
    segment: slice
    words: Tensor
    counts: list[int]
    coding: Coding
    received: Signs | None = None

    @property
    def numel(self) -> int:
        return int(self.segment.stop - self.segment.start)

    @property
    def values(self) -> Tensor:
        return self.selection.flat[self.segment]

    def length(self, position: int) -> int:
        """Payload words that the rank at ``position`` sends."""
        if self.coding is Coding.WORDS:
            return self.counts[position]
        return bitmap_words(self.numel)

    def payload(self) -> Tensor:
        return (
            self.words if self.coding is Coding.WORDS else words_to_bitmap(self.words, self.numel)
        )

    def receive(self, rows: list[Tensor]) -> None:
        """Take what each rank has sent."""
        decoder = SignedWords if self.coding is Coding.WORDS else BitmapSigns
        self.received = decoder(rows, self.values)

    def settle(self, group_size: int, scale: float) -> None:
        memory = self.selection.memory
        assert memory.threshold is not None
        factors = [memory.threshold / group_size] + [scale] * (scale != 1.0)
        residual = memory.residual[self.segment]
        settle_(self.values, residual, self.words, memory.threshold, self.received, factors)
        self.received = None


class Payload:
    """The exchange of one bucket: gathered words and bitmaps, summed signs, first gradients.

    Collectives are started at construction; all ranks of the group must construct it in the same
    order, with the same facts.
    """

    def __init__(self, selections: list[Selection], facts: Tensor, channel: Channel) -> None:
        """Choose the codings from ``facts`` (P, all segments of the bucket) and start sending."""
        self._channel = channel
        self._selections = selections
        self._parts: list[_Part] = []
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
                self._parts.append(part)
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
        offset = 0
        for part in self._gathered:
            payload = part.payload()
            own[offset : offset + len(payload)] = payload
            offset += len(payload)
        self._received = own.new_empty(size * longest)
        return self._channel.all_gather(self._received, own, "gradients")

    def _send_dense(self) -> Pending | None:
        if not self._dense:
            return None
        sizes = [part.numel for part in self._dense]
        dtype = dense_dtype(self._channel.size)
        device = self._dense[0].words.device
        self._signs = torch.zeros(sum(sizes), dtype=dtype, device=device)
        for part, signs in zip(self._dense, self._signs.split(sizes), strict=True):
            add_signs_(signs, part.words)
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

    def settle(self, scale: float) -> None:
        """Keep the residuals, and overwrite the bucket with the mean of what the group sent.

        Args:
            scale: multiplied into the mean.

        """
        self._hand_out_gathered()
        self._hand_out_dense()
        for part in self._parts:
            part.settle(self._channel.size, scale)
        for selection in self._selections:
            if selection.skipped:
                selection.flat.zero_()
        if self._first:
            flats = [selection.flat for selection in self._first]
            sizes = [flat.numel() for flat in flats]
            if scale != 1.0:
                self._first_mean.mul_(scale)
            torch._foreach_copy_(flats, list(self._first_mean.split(sizes)))

    def _hand_out_gathered(self) -> None:
        if not self._gathered:
            return
        rows: list[list[Tensor]] = [[] for _ in self._gathered]
        for position, payload in enumerate(self._received.view(self._channel.size, -1)):
            offset = 0
            for part, own in zip(self._gathered, rows, strict=True):
                own.append(payload[offset : offset + part.length(position)])
                offset += part.length(position)
        for part, own in zip(self._gathered, rows, strict=True):
            part.receive(own)

    def _hand_out_dense(self) -> None:
        if not self._dense:
            return
        sizes = [part.numel for part in self._dense]
        for part, signs in zip(self._dense, self._signs.split(sizes), strict=True):
            part.received = DenseSigns(signs, part.values)
