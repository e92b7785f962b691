"""The part of a block's model that has one dtype: its transfer buffer and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.carriers import Carrier
from lightning_hier.comm.blocks.health import Reading, Verdict
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.flat import FlatView


class ModelPart:
    """Tensors of one dtype: the model's, then state of the local optimizer that travels with it.

    Of the model, those come first that the block filter moves, then those that are only averaged.
    This rank keeps W and Delta for its share of the filtered tensors alone, and of the carried
    state what the last block started from.

    Attributes:
        global_model: this rank's share of W, flat.
        update: this rank's share of Delta, flat; None where eta is 0.

    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        *,
        local_state: LocalState,
        block_filter: BlockFilter,
        carrier: Carrier,
        across: Channel,
    ) -> None:
        """Take the present tensors as W and zero as Delta; communicates nothing."""
        self._filtered = len(FlatView(filtered))
        self._model = FlatView([*filtered, *averaged])
        self._view = FlatView([*filtered, *averaged, *carried])
        self._carried = carried
        self._local_state = local_state
        self._filter = block_filter
        self._carrier = carrier
        self._across = across
        self._share = carrier.share(len(self._view))
        example = self._view.tensors[0]
        self._buffer = torch.zeros(
            carrier.padded(len(self._view)), dtype=example.dtype, device=example.device
        )
        # Within this rank's share, and counted from its start.
        self._own_filtered = self._own(0, self._filtered)
        self._own_averaged = self._own(self._filtered, len(self._model))
        self._own_carried = self._own(len(self._model), len(self._view))
        share = self._read_share()
        self.global_model = share[self._own_filtered].clone()
        self.update = torch.zeros_like(self.global_model) if block_filter.keeps_update else None
        keeps = local_state.keeps_previous
        self._previous = share[self._own_carried].clone() if keeps else None

    def _own(self, start: int, stop: int) -> slice:
        """Where the elements ``start`` to ``stop`` lie in this rank's share."""
        size = self._share.stop - self._share.start
        low, high = (min(max(edge - self._share.start, 0), size) for edge in (start, stop))
        return slice(low, high)

    def _read_share(self) -> Tensor:
        share = self._buffer[self._share]
        self._view.read_(self._share.start, self._share.stop, share)
        return share

    def gather(self) -> Reading:
        """Copy this rank's share of the local model and state into the transfer buffer."""
        share = self._read_share()
        return Reading.of_squares(
            parameters=_squares(share[self._own_filtered]),
            buffers=_squares(share[self._own_averaged]),
            optimizer=_squares(share[self._own_carried]),
        )

    def average_(self, verdict: Verdict) -> float:
        """Replace the gathered share by its mean over the healthy groups.

        A collective of the ranks at this position in all groups.

        Returns:
            The sum of the squares of the model's mean.

        """
        share = self._buffer[self._share]
        self._average(share, verdict)
        return _squares(share[: self._own_carried.start])

    def advance_(self) -> float:
        """Turn the mean into what the next block starts from; move W and Delta.

        Returns:
            The sum of the squares of Delta.

        """
        mean = self._buffer[self._share]
        self._advance_carried_(mean[self._own_carried])
        return self._filter.advance_(mean[self._own_filtered], self.global_model, self.update)

    def look_(self, verdict: Verdict, *, pending: bool) -> None:
        """Put W into the gathered share, and the mean of what is only averaged; W and Delta stay.

        A collective of the ranks at this position in all groups.

        Args:
            verdict: whose models are averaged.
            pending: whether W shall be what it would become if the block ended here.

        """
        share = self._buffer[self._share]
        if not pending:
            self._average(share[self._own_averaged], verdict)
            share[self._own_filtered].copy_(self.global_model)
            return
        self._average(share[: self._own_carried.start], verdict)
        mean = share[self._own_filtered]
        mean.copy_(self._filter.next_global(mean, self.global_model, self.update))

    def recall_(self) -> None:
        """Put W, and the state that the block started from, into the transfer buffer."""
        share = self._buffer[self._share]
        share[self._own_filtered].copy_(self.global_model)
        if self._previous is not None:
            share[self._own_carried].copy_(self._previous)

    def recall_update_(self) -> None:
        """Put Delta into the transfer buffer, zeros where there is none."""
        own = self._buffer[self._share][self._own_filtered]
        own.zero_() if self.update is None else own.copy_(self.update)

    def adopt_update(self) -> None:
        """Take the present tensors as Delta."""
        if self.update is not None:
            self.update.copy_(self._read_share()[self._own_filtered])

    def state(self) -> dict[str, Any]:
        """This rank's share of the state, and where it begins; the tensors are not copied."""
        return {
            "dtype": str(self._buffer.dtype),
            "elements": self._filtered,
            "start": min(self._share.start, self._filtered),
            "filter": asdict(self._filter),
            "global_model": self.global_model,
            "update": self.update,
            "previous": self._previous,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a part with the same share."""
        self.global_model.copy_(state["global_model"])
        if self.update is not None and state["update"] is not None:
            self.update.copy_(state["update"])
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])

    def restart(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from a model and an update of the whole world, whatever its shares were.

        The transfer buffer gets this rank's share of what the block starts from, for
        :meth:`spread_`; the averaged tensors in it are those of this rank.

        Args:
            global_model: W of all filtered tensors, flat.
            update: Delta of the same.

        """
        self._read_share()
        own = slice(*(edge + self._share.start for edge in (0, self.global_model.numel())))
        self.global_model.copy_(global_model[own])
        if self.update is not None:
            self.update.copy_(update[own])
        share = self._buffer[self._share]
        share[self._own_filtered].copy_(self._filter.start_model(self.global_model, self.update))

    def spread_(self, *, carried: bool = True) -> None:
        """Hand the shares round in the group and write them into the tensors, in place.

        A collective of the group; afterwards its ranks hold the same bits.

        Args:
            carried: False leaves the state of the local optimizer as it is.

        """
        self._carrier.spread_(self._buffer)
        (self._view if carried else self._model).write_from(self._buffer)

    def _average(self, piece: Tensor, verdict: Verdict) -> None:
        if piece.numel():
            if verdict.takes_part:
                piece.div_(verdict.healthy)
            else:
                piece.zero_()  # dividing would leave the NaN
            self._across.all_reduce_(piece, "models").wait()

    def _advance_carried_(self, mean: Tensor) -> None:
        first = self._share.start + self._own_carried.start - len(self._model)
        for tensor, _, place in FlatView(self._carried).pieces(first, first + len(mean)):
            previous = None if self._previous is None else self._previous[place]
            self._local_state.advance_(tensor, mean[place], previous)
        if self._previous is not None:
            self._previous.copy_(mean)


def _squares(values: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float64)) if len(values) else 0.0
    return norm * norm  # a power that overflows would raise, on this rank alone
