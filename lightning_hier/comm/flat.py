"""Several tensors as one flat vector for collectives, read and written in place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightning_hier.comm.sharded_tensors import local_tensor


class FlatView:
    """Tensors of one dtype and device in a fixed order. Of a DTensor, it has the local shard.

    The tensors keep their own storage. They are copied into a buffer before a collective and copied
    back, in place, after it. Views of one permanent buffer would be replaced by ``.to()`` and by
    cuDNN's packing of LSTM weights.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Use the tensors in the given order."""
        self.tensors = list(tensors)
        self._offsets = [0]
        # One more than there are tensors: the last one is the length.
        for tensor in self.tensors:
            self._offsets.append(self._offsets[-1] + local_tensor(tensor).numel())

    def __len__(self) -> int:
        """Number of elements."""
        return self._offsets[-1]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[Tensor, slice, slice]]:
        """Tensors that have elements between ``start`` and ``stop``.

        Yields each tensor, the range in the tensor, and the range relative to ``start``.
        """
        # From the last tensor that begins at `start` or before. Empty ones before it do not matter.
        for number in range(max(bisect_right(self._offsets, start) - 1, 0), len(self.tensors)):
            tensor, first = self.tensors[number], self._offsets[number]
            if first >= stop:
                return
            low, high = max(start, first), min(stop, self._offsets[number + 1])
            if low < high:
                yield tensor, slice(low - first, high - first), slice(low - start, high - start)

    def read_(self, start: int, stop: int, out: Tensor) -> None:
        """Copy the elements ``start`` to ``stop`` into ``out`` (1-D, of this length)."""
        sources, targets = [], []
        for tensor, inside, place in self.pieces(start, stop):
            # Of a tensor that is not contiguous, reshape makes a copy, which is enough to read it.
            sources.append(local_tensor(tensor).reshape(-1)[inside])
            targets.append(out[place])
        if sources:  # one call for all tensors, because a model has many small ones
            torch._foreach_copy_(targets, sources)

    def copied(self) -> Tensor:
        """A new flat tensor with the values of all elements. There must be tensors."""
        first = self.tensors[0]
        flat = torch.empty(len(self), dtype=first.dtype, device=first.device)
        self.read_(0, len(self), flat)
        return flat

    def write_range(self, start: int, stop: int, flat: Tensor) -> None:
        """Copy the elements ``start`` to ``stop`` of ``flat`` (all elements) into the tensors.

        Tensors that are not contiguous are skipped, because a range of their elements is not a
        range of memory. :meth:`write_scattered` writes them.
        """
        sources, targets = [], []
        for tensor, inside, place in self.pieces(start, stop):
            local = local_tensor(tensor)
            if local.is_contiguous():
                targets.append(local.view(-1)[inside])
                sources.append(flat[start:stop][place])
        if sources:
            torch._foreach_copy_(targets, sources)

    def write_scattered(self, flat: Tensor) -> None:
        """Copy ``flat`` (all elements) into the tensors that are not contiguous."""
        for tensor, first in zip(self.tensors, self._offsets, strict=False):
            local = local_tensor(tensor)
            if not local.is_contiguous():
                local.copy_(flat[first : first + local.numel()].view(local.shape))

    def write_from(self, flat: Tensor) -> None:
        """Copy ``flat`` (all elements) into the tensors, in place."""
        if self.tensors:
            targets = [local_tensor(tensor) for tensor in self.tensors]
            pieces = flat[: len(self)].split([target.numel() for target in targets])
            shaped = [p.view(t.shape) for p, t in zip(pieces, targets, strict=True)]
            torch._foreach_copy_(targets, shaped)
