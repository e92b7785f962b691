"""What the workers of a group send each other in one bucket of a GTC step.

A rank sends a row for each worker that it plays.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from lightning_hier.algorithms.encoding import settle_
from lightning_hier.algorithms.threshold import add_signs_
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.gradients.gtc_selection import Selection


@dataclass
class _Part:
    """One segment on its way: how it is coded, where it lies in each row of a payload, what came.

    The selections are those of the workers that this rank plays, all of the same tensor.
    """

    selections: Sequence[Selection]
    segment: slice
    words: list[Tensor]
    counts: list[int]
    coding: Coding
    received: Signs | None = None

    @property
    def numel(self) -> int:
        return int(self.segment.stop - self.segment.start)

    @property
    def values(self) -> Tensor:
        """Where the mean is to be."""
        return self.selections[0].flat[self.segment]

    def length(self, worker: int) -> int:
        """Payload words that a worker of the group sends."""
        if self.coding is Coding.WORDS:
            return self.counts[worker]
        return bitmap_words(self.numel)

    def payloads(self) -> list[Tensor]:
        """Of each worker of this rank."""
        if self.coding is Coding.WORDS:
            return self.words
        return [words_to_bitmap(own, self.numel) for own in self.words]

    def receive(self, rows: list[Tensor]) -> None:
        """Take what each worker of the group has sent."""
        decoder = SignedWords if self.coding is Coding.WORDS else BitmapSigns
        self.received = decoder(rows, self.values)

    def settle(self, scale: float) -> None:
        """Keep the residual of each worker, and make of the values of the first the mean."""
        received = self.received
        for selection, words in zip(self.selections, self.words, strict=True):
            memory = selection.memory
            assert memory.threshold is not None
            factors = [memory.threshold / len(self.counts)] + [scale] * (scale != 1.0)
            values, residual = selection.flat[self.segment], memory.residual[self.segment]
            settle_(values, residual, words, memory.threshold, received, factors)
            received = None
        self.received = None


class Payload:
    """The exchange of one bucket: gathered words and bitmaps, summed signs, first gradients.

    Collectives are started at construction; all ranks of the group must construct it in the same
    order, with the same facts.
    """

    def __init__(self, rows: Sequence[list[Selection]], facts: Tensor, channel: Channel) -> None:
        """Choose the codings and start sending.

        Args:
            rows: the selections of each worker that this rank plays.
            facts: of all workers of the group, (G, all segments of the bucket).
            channel: the ranks of the group.

        """
        self._channel = channel
        self._tensors = list(zip(*rows, strict=True))
        self._workers = len(facts)
        self._parts: list[_Part] = []
        self._gathered: list[_Part] = []
        self._dense: list[_Part] = []
        self._first: list[tuple[Selection, ...]] = []
        self._plan(facts)
        self._pending = [
            pending
            for pending in (self._send_gathered(len(rows)), self._send_dense(), self._send_first())
            if pending is not None
        ]

    def _plan(self, facts: Tensor) -> None:
        column = 0
        for selections in self._tensors:
            one = selections[0]
            width = len(one.facts)
            told = facts[:, column : column + width]
            column += width
            for selection in selections:
                counts = selection.learn(told)
            if one.skipped:
                continue
            if one.memory.threshold is None:
                self._first.append(selections)
                continue
            for i, segment in enumerate(one.parts):
                own = counts[:, i].tolist()
                size = segment.stop - segment.start
                coding = choose_coding(max(own), size, self._workers)
                words = [selection.words[i] for selection in selections]
                part = _Part(selections, segment, words, own, coding)
                self._parts.append(part)
                if coding is Coding.DENSE:
                    self._dense.append(part)
                elif coding is not Coding.NOTHING:
                    self._gathered.append(part)

    def _send_gathered(self, own_workers: int) -> Pending | None:
        if not self._gathered:
            return None
        lengths = [sum(part.length(w) for part in self._gathered) for w in range(self._workers)]
        device = self._gathered[0].values.device
        # gloo gathers equal lengths only.
        own = torch.zeros(own_workers, max(lengths), dtype=torch.int32, device=device)
        offsets = [0] * own_workers
        for part in self._gathered:
            for row, payload in enumerate(part.payloads()):
                own[row, offsets[row] : offsets[row] + len(payload)] = payload
                offsets[row] += len(payload)
        self._received = own.new_empty(self._workers * max(lengths))
        return self._channel.all_gather(self._received, own.view(-1), "gradients")

    def _send_dense(self) -> Pending | None:
        if not self._dense:
            return None
        sizes = [part.numel for part in self._dense]
        dtype = dense_dtype(self._workers)
        device = self._dense[0].values.device
        self._signs = torch.zeros(sum(sizes), dtype=dtype, device=device)
        for part, signs in zip(self._dense, self._signs.split(sizes), strict=True):
            for words in part.words:
                add_signs_(signs, words)
        return self._channel.all_reduce_(self._signs, "gradients")

    def _send_first(self) -> Pending | None:
        if not self._first:
            return None
        mean, *others = (
            torch.cat([own.flat for own in row]) for row in zip(*self._first, strict=True)
        )
        mean.div_(self._workers)
        for other in others:
            mean.add_(other.div_(self._workers))
        self._first_mean = mean
        return self._channel.all_reduce_(self._first_mean, "gradients")

    def wait(self) -> None:
        """Wait for all that is under way."""
        for pending in self._pending:
            pending.wait()

    def settle(self, scale: float) -> None:
        """Keep the residuals, and overwrite the first bucket with the mean of what the group sent.

        Args:
            scale: multiplied into the mean.

        """
        self._hand_out_gathered()
        self._hand_out_dense()
        for part in self._parts:
            part.settle(scale)
        for one, *_ in self._tensors:
            if one.skipped:
                one.flat.zero_()
        if self._first:
            flats = [one.flat for one, *_ in self._first]
            sizes = [flat.numel() for flat in flats]
            if scale != 1.0:
                self._first_mean.mul_(scale)
            torch._foreach_copy_(flats, list(self._first_mean.split(sizes)))

    def _hand_out_gathered(self) -> None:
        if not self._gathered:
            return
        rows: list[list[Tensor]] = [[] for _ in self._gathered]
        for worker, payload in enumerate(self._received.view(self._workers, -1)):
            offset = 0
            for part, own in zip(self._gathered, rows, strict=True):
                own.append(payload[offset : offset + part.length(worker)])
                offset += part.length(worker)
        for part, own in zip(self._gathered, rows, strict=True):
            part.receive(own)

    def _hand_out_dense(self) -> None:
        if not self._dense:
            return
        sizes = [part.numel for part in self._dense]
        for part, signs in zip(self._dense, self._signs.split(sizes), strict=True):
            part.received = DenseSigns(signs, part.values)
