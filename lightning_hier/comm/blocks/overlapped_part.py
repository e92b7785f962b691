"""A part of the model whose synchronisation runs while the next block is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.health import Verdict
from lightning_hier.comm.blocks.model_part import ModelPart
from lightning_hier.comm.blocks.part_settings import PartSettings, Squares
from lightning_hier.comm.blocks.share import Chunk
from lightning_hier.comm.stages import QueuedWork, Stages, side_by_side

# Chunks that begin together: enough to keep a link busy from one step to the next.
_AT_ONCE = 8


class OverlappedPart(ModelPart):
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
        settings: PartSettings,
    ) -> None:
        """Take the present tensors as W and w; nothing travels."""
        super().__init__(filtered, averaged, carried, settings)
        self._models = settings.models
        # The same for all local models until a block of theirs has ended.
        self._begun = [self.global_model.clone()] * self._models.number
        self._travelling = torch.zeros_like(self.global_model)
        self._under_way = False
        self._travels = settings.route.travelling
        self._steps = settings.block_size
        self._work: QueuedWork | None = None
        # Of the models whose way travels: theirs, and of what was averaged at once.
        self._squares = Squares(0.0)

    @property
    def _begun_with(self) -> Tensor:
        """This rank's share of what the local model in the module began its block with."""
        return self._begun[self._models.current]

    def _leave_out_start_(self, model: Tensor, place: slice) -> float:
        """What travels is what this group has made of its share in this block."""
        return self._filter.leave_out_start_(model, self._begun_with[place], None)

    def synchronise_(self, verdict: Verdict) -> Squares:
        """Apply the mean of the block before. A collective of the world.

        What this block has made is ready for :meth:`send_off`.
        """
        if self._share.averages:
            self._travels.finish()  # buffers take the same way
        elif self._work is not None:
            self._travels.finish(self._work)
        found, self._squares = self._squares, Squares(verdict.squares / verdict.healthy)

        def advance(chunk: Chunk) -> None:
            place = chunk.filtered
            made, arrived = self._share.values[place], self._travelling[place]
            own, update = self._state_at(place)
            if self._under_way:
                found.add(*self._filter.advance_by_(arrived, own, update))
            else:
                arrived.copy_(self._filter.start_model(own, update))
            self._squares.mean += sum_of_squares(self._share.values[chunk.averaged])
            begun_with = self._begun_with[place]
            if len(self._begun) > 1:
                for each in self._begun:
                    each[place].add_(arrived)
            elif verdict.takes_part:
                torch.add(arrived, made, out=begun_with)
            else:
                begun_with.copy_(arrived)
            arrived.copy_(made)
            made.copy_(begun_with)

        self._each_chunk(lambda chunk: self._mean.exact(chunk.averaged, verdict), advance)
        return found

    def send_off(self, verdict: Verdict) -> None:
        """Have the mean of what this block has made travel while the next one is trained."""
        self._under_way = True
        places = [chunk.filtered for chunk in self._share.chunks()]
        self._work = self._travels.add(
            (
                self._mean.of_filtered(self._travelling[place], place, verdict, keep=True)
                for place in places
            ),
            at_once=_AT_ONCE,
            due=self._mean.due * len(places),
            steps=self._steps,
        )

    def keep_made_(self) -> None:
        """Keep what the local model in the module has made in the place of what it began with.

        Where it is the only one, its tensors have that until they are overwritten.
        """
        if len(self._begun) == 1:
            return
        made = torch.empty_like(self._begun_with)
        for piece, values in self._share.read_in_pieces(aside=True):
            own = values(piece.filtered)
            self._leave_out_start_(own, piece.filtered)
            made[piece.filtered].copy_(own)
        self._begun[self._models.current] = made

    def write_(self) -> None:
        """Write what another local model begins the next block with into its tensors."""
        self._share.values[self._share.filtered].copy_(self._begun_with)
        super().write_()

    def look_(self, verdict: Verdict, *, pending: bool) -> None:
        """Write W as if training ended here: all that travels, and all that was made, is in it.

        A collective of the world. W, Delta and what travels stay as they are.
        """
        self._travels.finish()

        def average(chunk: Chunk) -> Stages:
            exact = self._mean.exact(chunk.averaged, verdict)
            if not pending:
                return exact
            place = chunk.filtered
            made = self._mean.of_filtered(self._share.values[place], place, verdict, keep=False)
            return side_by_side([made, exact])

        def look(chunk: Chunk) -> None:
            place = chunk.filtered
            shown = self._share.values[place]
            own, update = self._state_at(place)
            own, update = own.clone(), None if update is None else update.clone()
            if self._under_way:
                self._filter.advance_by_(self._travelling[place].clone(), own, update)
            shown.copy_(self._filter.global_after(shown, own, update) if pending else own)

        self._each_chunk(average, look, carried=False)

    def vectors(self) -> dict[str, Tensor]:
        """Delta, what travels, and how far ahead of W the block began."""
        ahead = self._begun_with - self.global_model
        return {**super().vectors(), "travelling": self._travelling, "ahead": ahead}

    def adopt_(self, name: str) -> None:
        """Take the present tensors as one of :meth:`vectors`."""
        if name == "ahead":
            shown = self._share.read()[self._share.filtered]
            torch.add(self.global_model, shown, out=self._begun_with)
        else:
            super().adopt_(name)

    def follow(self, older: ModelPart) -> None:
        """Whether something travels, and the squares that belong to it."""
        if isinstance(older, OverlappedPart):
            self._under_way, self._squares = older._under_way, older._squares

    def state(self) -> dict[str, Any]:
        """This rank's share of the state; the tensors are not copied. Waits for what travels."""
        self._travels.finish()
        return super().state() | {
            "begun_with": self._begun_with,
            "travelling": self._travelling if self._under_way else None,
            "squares": [self._squares.models, self._squares.mean],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a part with the same share."""
        super().load(state)
        self.load_local(state)
        self._under_way = state["travelling"] is not None
        if self._under_way:
            self._travelling.copy_(state["travelling"])
        self._squares = Squares(*state["squares"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Take over what the local model in the module began its block with."""
        self._begun[self._models.current] = state["begun_with"].to(self.global_model, copy=True)

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from a model and an update of the whole world. A collective of the group.

        Nothing travels then.
        """
        super().restart_(global_model, update)
        start = self._filter.start_model(self.global_model, self.update).clone()
        self._begun = [start] * self._models.number
