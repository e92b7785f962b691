"""A part of the model whose synchronisation runs while the next block is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.bucket_settings import BucketSettings, Norms
from lightning_hier.comm.blocks.dtype_bucket import DtypeBucket
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.shard import Chunk
from lightning_hier.comm.stages import QueuedPipeline, Stages, side_by_side

# Chunks that begin together: enough to keep a link busy from one step to the next.
_AT_ONCE = 8


class OverlappedBucket(DtypeBucket):
    """Tensors of one dtype, synchronised one block late (double buffering, brought to blocks).

    ``u_k(t)`` is what group k has made of the model in block t: its model at the block's end minus
    the one that it began with. Its mean travels while block t + 1 is trained, and what was made
    meanwhile is kept. At the end of block t + 1::

        G(t)       = mean over k of u_k(t)
        Delta(t)   = eta * Delta(t-1) + zeta * G(t)
        W(t)       = W(t-1) + Delta(t)
        w_k(t + 2) = W_g(t) + u_k(t + 1)          the model with which group k begins block t + 2

    with W_g as in :class:`~lightning_hier.algorithms.block_momentum.BlockFilter`. So every u is in
    the mean exactly once, one block after it was made. Only tensors that are averaged without a
    filter are synchronised at once.

    This rank keeps its share of two more vectors than W and Delta: of w_k, for each of its local
    models, and of what travels, which is what all of them have made.
    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        settings: BucketSettings,
    ) -> None:
        """Take the present tensors as W and w; nothing travels."""
        super().__init__(filtered, averaged, carried, settings)
        self._models = settings.models
        # The same for all local models until a block of theirs has ended.
        self._begun = [self.global_model.clone()] * self._models.number
        self._in_flight = torch.zeros_like(self.global_model)
        self._under_way = False
        self._travels = settings.route.in_flight
        self._steps = settings.block_size
        self._work: QueuedPipeline | None = None
        # Of the models whose way travels: theirs, and of what was averaged at once.
        self._squares = Norms(0.0)

    @property
    def _block_start(self) -> Tensor:
        """This rank's share of what the local model in the module began its block with."""
        return self._begun[self._models.current]

    def _leave_out_start_(self, model: Tensor, place: slice) -> float:
        """What travels is what this group has made of its share in this block."""
        return self._filter.leave_out_start_(model, self._block_start[place], None)

    def synchronise_(self, participation: Participation) -> Norms:
        """Apply the mean of the block before. A collective of the world.

        What this block has made is ready for :meth:`send_off`.
        """
        if self._shard.averages:
            self._travels.finish()  # buffers take the same way
        elif self._work is not None:
            self._travels.finish(self._work)
        found, self._squares = self._squares, Norms(participation.squares / participation.healthy)

        def advance(chunk: Chunk) -> None:
            place = chunk.filtered
            made, arrived = self._shard.values[place], self._in_flight[place]
            own, update = self._state_at(place)
            if self._under_way:
                found.add(*self._filter.advance_by_(arrived, own, update))
            else:
                arrived.copy_(self._filter.start_model(own, update))
            self._squares.mean += sum_of_squares(self._shard.values[chunk.averaged])
            block_start = self._block_start[place]
            if len(self._begun) > 1:
                for each in self._begun:
                    each[place].add_(arrived)
            elif participation.takes_part:
                torch.add(arrived, made, out=block_start)
            else:
                block_start.copy_(arrived)
            arrived.copy_(made)
            made.copy_(block_start)

        self._each_chunk(lambda chunk: self._mean.exact(chunk.averaged, participation), advance)
        return found

    def send_off(self, participation: Participation) -> None:
        """Have the mean of what this block has made travel while the next one is trained."""
        self._under_way = True
        places = [chunk.filtered for chunk in self._shard.chunks()]
        self._work = self._travels.add(
            (
                self._mean.of_filtered(self._in_flight[place], place, participation, keep=True)
                for place in places
            ),
            at_once=_AT_ONCE,
            due=self._mean.due * len(places),
            steps=self._steps,
        )

    def keep_local_update_(self) -> None:
        """Keep what the local model in the module has made in the place of what it began with.

        Where it is the only one, its tensors have that until they are overwritten.
        """
        if len(self._begun) == 1:
            return
        made = torch.empty_like(self._block_start)
        for piece, values in self._shard.read_in_pieces(aside=True):
            own = values(piece.filtered)
            self._leave_out_start_(own, piece.filtered)
            made[piece.filtered].copy_(own)
        self._begun[self._models.current] = made

    def write_(self) -> None:
        """Write what another local model begins the next block with into its tensors."""
        self._shard.values[self._shard.filtered].copy_(self._block_start)
        super().write_()

    def look_(self, participation: Participation, *, pending: bool) -> None:
        """Write W as if training ended here: all that travels, and all that was made, is in it.

        A collective of the world. W, Delta and what travels stay as they are.
        """
        self._travels.finish()

        def average(chunk: Chunk) -> Stages:
            exact = self._mean.exact(chunk.averaged, participation)
            if not pending:
                return exact
            place = chunk.filtered
            made = self._mean.of_filtered(
                self._shard.values[place], place, participation, keep=False
            )
            return side_by_side([made, exact])

        def look(chunk: Chunk) -> None:
            place = chunk.filtered
            shown = self._shard.values[place]
            own, update = self._state_at(place)
            own, update = own.clone(), None if update is None else update.clone()
            if self._under_way:
                self._filter.advance_by_(self._in_flight[place].clone(), own, update)
            shown.copy_(self._filter.global_after(shown, own, update) if pending else own)

        self._each_chunk(average, look, carried=False)

    def vectors(self) -> dict[str, Tensor]:
        """Delta, what travels, and how far ahead of W the block began."""
        ahead = self._block_start - self.global_model
        return {**super().vectors(), "in_flight": self._in_flight, "ahead": ahead}

    def adopt_(self, name: str) -> None:
        """Take the present tensors as one of :meth:`vectors`."""
        if name == "ahead":
            shown = self._shard.read()[self._shard.filtered]
            torch.add(self.global_model, shown, out=self._block_start)
        else:
            super().adopt_(name)

    def follow(self, older: DtypeBucket) -> None:
        """Whether something travels, and the squares that belong to it."""
        if isinstance(older, OverlappedBucket):
            self._under_way, self._squares = older._under_way, older._squares

    def state(self) -> dict[str, Any]:
        """This rank's share of the state; the tensors are not copied. Waits for what travels."""
        self._travels.finish()
        return super().state() | {
            "block_start": self._block_start,
            "in_flight": self._in_flight if self._under_way else None,
            "squares": [self._squares.models, self._squares.mean],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a part with the same share."""
        super().load(state)
        self.load_local(state)
        self._under_way = state["in_flight"] is not None
        if self._under_way:
            self._in_flight.copy_(state["in_flight"])
        self._squares = Norms(*state["squares"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Take over what the local model in the module began its block with."""
        self._begun[self._models.current] = state["block_start"].to(self.global_model, copy=True)

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from a model and an update of the whole world. A collective of the group.

        Nothing travels then.
        """
        super().restart_(global_model, update)
        start = self._filter.start_model(self.global_model, self.update).clone()
        self._begun = [start] * self._models.number
