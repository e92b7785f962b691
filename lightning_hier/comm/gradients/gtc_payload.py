"""The payload that the workers of a group exchange in one bucket of a GTC step.

A rank sends a row for each of its virtual workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.payload import bitmap_words, words_to_bitmap
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.gradients.gtc_selection import Selection


@dataclass
class _Segment:
    """One segment of a tensor: its encoding, and the payload of each worker of the group.

    The selections are those of the workers of this rank, all of the same tensor.
    """

    selections: Sequence[Selection]
    place: slice
    words: list[Tensor]
    counts: list[int]
    rows: list[Tensor] = field(default_factory=list)

    @property
    def numel(self) -> int:
        return int(self.place.stop - self.place.start)

    @cached_property
    def is_bitmap(self) -> bool:
        """Whether bitmaps take fewer bytes than words; the counts are the same on all ranks."""
        return max(self.counts) > bitmap_words(self.numel)

    def length(self, worker: int) -> int:
        """Number of 32-bit words in the payload of a worker of the group."""
        return bitmap_words(self.numel) if self.is_bitmap else self.counts[worker]

    def payloads(self) -> list[Tensor]:
        """The payload of each worker of this rank."""
        if not self.is_bitmap:
            return self.words
        return [words_to_bitmap(own, self.numel) for own in self.words]

    def decode_(self, scale: float) -> None:
        """Update the residual of each worker, and write the mean into the values of the first."""
        rows = [row for row in self.rows if len(row)]
        for selection, words in zip(self.selections, self.words, strict=True):
            memory = selection.memory
            assert memory.threshold is not None
            factors = [memory.threshold / len(self.counts)] + [scale] * (scale != 1.0)
            values, residual = selection.flat[self.place], memory.residual[self.place]
            kernels_for(values, residual).decode_(
                values, residual, words, memory.threshold, rows, factors, bitmaps=self.is_bitmap
            )
            rows = []
        self.rows = []


class Payload:
    """The exchange of one bucket: gathered words and bitmaps, and the mean of first gradients.

    Collectives are started at construction; all ranks of the group must construct it in the same
    order, with the same facts.
    """

    def __init__(self, rows: Sequence[list[Selection]], facts: Tensor, channel: Channel) -> None:
        """Choose the encodings and start sending.

        Args:
            rows: the selections of each worker of this rank.
            facts: of all workers of the group, (G, all segments of the bucket).
            channel: the ranks of the group.

        """
        self._channel = channel
        self._tensors = list(zip(*rows, strict=True))
        self._workers = len(facts)
        self._segments: list[_Segment] = []
        self._first: list[tuple[Selection, ...]] = []
        self._plan(facts)
        started = (self._send_segments(len(rows)), self._send_first())
        self._pending = [pending for pending in started if pending is not None]

    def _plan(self, facts: Tensor) -> None:
        column = 0
        for selections in self._tensors:
            one = selections[0]
            width = len(one.facts)
            own_facts = facts[:, column : column + width]
            column += width
            for selection in selections:
                counts = selection.add_facts(own_facts)
            if one.skipped:
                continue
            if one.memory.threshold is None:
                self._first.append(selections)
                continue
            for i, place in enumerate(one.parts):
                words = [selection.words[i] for selection in selections]
                self._segments.append(_Segment(selections, place, words, counts[:, i].tolist()))

    def _send_segments(self, own_workers: int) -> Pending | None:
        lengths = [sum(one.length(w) for one in self._segments) for w in range(self._workers)]
        if not max(lengths):
            return None
        device = self._segments[0].selections[0].flat.device
        # gloo gathers equal lengths only.
        own = torch.zeros(own_workers, max(lengths), dtype=torch.int32, device=device)
        offsets = [0] * own_workers
        for one in self._segments:
            for row, payload in enumerate(one.payloads()):
                own[row, offsets[row] : offsets[row] + len(payload)] = payload
                offsets[row] += len(payload)
        received = own.new_empty(self._workers * max(lengths))
        for worker, row in enumerate(received.view(self._workers, -1)):
            offset = 0
            for one in self._segments:
                one.rows.append(row[offset : offset + one.length(worker)])
                offset += one.length(worker)
        return self._channel.all_gather(received, own.view(-1), "gradients")

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
        """Wait for all collectives that are in flight."""
        for pending in self._pending:
            pending.wait()

    def decode_(self, scale: float) -> None:
        """Update the residuals, and overwrite the first bucket with the mean over the group.

        Args:
            scale: multiplied into the mean.

        """
        for segment in self._segments:
            segment.decode_(scale)
        for one, *_ in self._tensors:
            if one.skipped:
                one.flat.zero_()
        if self._first:
            flats = [one.flat for one, *_ in self._first]
            sizes = [flat.numel() for flat in flats]
            if scale != 1.0:
                self._first_mean.mul_(scale)
            torch._foreach_copy_(flats, list(self._first_mean.split(sizes)))
