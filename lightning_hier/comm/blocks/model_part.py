"""The part of a block's model that has one dtype: its transfer buffer and its state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.carriers import Carrier
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.flat import FlatView


class ModelPart:
    """Tensors of one dtype: first those that the block filter moves, then those only averaged.

    This rank keeps W and Delta for its share of the filtered tensors alone.

    Attributes:
        global_model: this rank's share of W, flat.
        update: this rank's share of Delta, flat; None where eta is 0.

    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        *,
        block_filter: BlockFilter,
        carrier: Carrier,
        across: Channel,
    ) -> None:
        """Take the present tensors as W and zero as Delta; communicates nothing."""
        self._filtered = len(FlatView(filtered))
        self._view = FlatView([*filtered, *averaged])
        self._filter = block_filter
        self._carrier = carrier
        self._across = across
        self._share = carrier.share(len(self._view))
        example = self._view.tensors[0]
        self._buffer = torch.zeros(
            carrier.padded(len(self._view)), dtype=example.dtype, device=example.device
        )
        self.global_model = self._read_share()[self._own_filtered].clone()
        self.update = torch.zeros_like(self.global_model) if block_filter.keeps_update else None

    @property
    def _own_filtered(self) -> slice:
        """The filtered elements within this rank's share, counted from the start of the share."""
        size = self._share.stop - self._share.start
        return slice(0, min(max(self._filtered - self._share.start, 0), size))

    def _read_share(self) -> Tensor:
        share = self._buffer[self._share]
        self._view.read_(self._share.start, self._share.stop, share)
        return share

    def gather(self) -> float:
        """Copy this rank's share of the local model into the transfer buffer.

        Returns:
            The sum of its squares, NaN or inf where a value is.

        """
        return _squares(self._read_share())

    def average_(self, *, filtered: bool = True) -> float:
        """Replace the gathered share by its mean over the groups.

        A collective of the ranks at this position in all groups.

        Args:
            filtered: False leaves out what the block filter moves.

        Returns:
            The sum of the squares of the mean.

        """
        share = self._buffer[self._share]
        if not filtered:
            share = share[self._own_filtered.stop :]
        if share.numel():
            share.div_(self._across.size)
            self._across.all_reduce_(share, "models").wait()
        return _squares(share)

    def advance_(self) -> float:
        """Turn the mean into the start model of the next block; move W and Delta.

        Returns:
            The sum of the squares of Delta.

        """
        mean = self._buffer[self._share][self._own_filtered]
        return self._filter.advance_(mean, self.global_model, self.update)

    def look_(self) -> None:
        """Turn the mean into the W that would follow; W and Delta stay."""
        mean = self._buffer[self._share][self._own_filtered]
        mean.copy_(self._filter.next_global(mean, self.global_model, self.update))

    def recall_(self) -> None:
        """Put W, without look-ahead, into the transfer buffer."""
        self._buffer[self._share][self._own_filtered].copy_(self.global_model)

    def recall_update_(self) -> None:
        """Put Delta into the transfer buffer, zeros where there is none."""
        own = self._buffer[self._share][self._own_filtered]
        own.zero_() if self.update is None else own.copy_(self.update)

    def adopt_update(self) -> None:
        """Take the present tensors as Delta."""
        if self.update is not None:
            self.update.copy_(self._read_share()[self._own_filtered])

    def spread_(self) -> None:
        """Hand the shares round in the group and write them into the tensors, in place.

        A collective of the group; afterwards its ranks hold the same bits.
        """
        self._carrier.spread_(self._buffer)
        self._view.write_from(self._buffer)


def _squares(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2 if len(values) else 0.0
