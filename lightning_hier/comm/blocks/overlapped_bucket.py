"""A dtype bucket whose synchronisation overlaps with the training of the next block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.bucket_mean import BucketSettings
from lightning_hier.comm.blocks.dtype_bucket import DtypeBucket
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.shard import Chunk
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline, QueuedPipeline, Stages, side_by_side

# Chunks that begin together: enough to keep a link busy from one step to the next.
_AT_ONCE = 8


class OverlappedBucket(DtypeBucket):
    """Tensors of one dtype, synchronised one block late (double buffering, brought to blocks).

    The local update ``u_k(t)`` of group k in block t is its model at the block's end minus its
    block-start weights. The mean of the updates is computed while block t + 1 is trained, and the
    progress of block t + 1 is kept. At the end of block t + 1::

        G(t)       = mean over k of u_k(t)
        Delta(t)   = eta * Delta(t-1) + zeta * G(t)
        W(t)       = W(t-1) + Delta(t)
        w_k(t + 2) = W_g(t) + u_k(t + 1)          block-start weights of group k in block t + 2

    with W_g as in :class:`~lightning_hier.algorithms.block_momentum.BlockFilter`. So every u is in
    the mean exactly once, one block late. Tensors that are only averaged are synchronised at once.

    Beside W and Delta this rank keeps its shard of w_k, for each of its local models, and of the
    update in flight, which is the sum over its local models.
    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        settings: BucketSettings,
    ) -> None:
        super().__init__(filtered, averaged, carried, settings)
        self._models = settings.models
        # All local models share them until their first block ends.
        self._block_starts = [self.global_model.clone()] * self._models.number
        self._in_flight = torch.zeros_like(self.global_model)
        self._has_update = False
        self._queue = settings.route.in_flight
        self._steps = settings.block_size
        self._work: QueuedPipeline | None = None
        # Of the models whose update is in flight, and of the tensors averaged at once.
        self._norms = Norms(0.0)

    @property
    def _block_start(self) -> Tensor:
        """This rank's shard of the block-start weights of the local model in the module."""
        return self._block_starts[self._models.current]

    def _subtract_start_(self, model: Tensor, place: slice) -> float:
        """Turn a range of the shard into the local update of this block."""
        return self._filter.leave_out_start_(model, self._block_start[place], None)

    def synchronise_(self, participation: Participation) -> Norms:
        """Apply the mean update of the block before. A collective of the world.

        :meth:`start_overlap` sends the update of this block.
        """
        if self._shard.averages:
            self._queue.finish()  # buffers use the same process groups
        elif self._work is not None:
            self._queue.finish(self._work)
        found, self._norms = self._norms, Norms(participation.squares / participation.healthy)
        Pipeline(
            self._synchronise_chunk(chunk, participation, found) for chunk in self._shard.chunks()
        ).run()
        self._shard.write_scattered()
        return found

    def _synchronise_chunk(
        self, chunk: Chunk, participation: Participation, found: Norms
    ) -> Stages:
        yield from self._mean.exact(chunk.averaged, participation)
        place = chunk.filtered
        local_update, arrived = self._shard.values[place], self._in_flight[place]
        own, update = self._state_at(place)
        if self._has_update:
            with profiler_range("hier/block/outer_step"):
                mean, squares = self._filter.advance_by_(arrived, own, update)
            found.mean += mean
            found.update += squares
        else:
            arrived.copy_(self._filter.start_model(own, update))
        # Now `arrived` holds W_g.
        self._norms.mean += sum_of_squares(self._shard.values[chunk.averaged])
        block_start = self._block_start[place]
        if len(self._block_starts) > 1:
            for each in self._block_starts:
                each[place].add_(arrived)
        elif participation.takes_part:
            torch.add(arrived, local_update, out=block_start)
        else:
            block_start.copy_(arrived)
        arrived.copy_(local_update)
        local_update.copy_(block_start)
        yield from self._shard.distribute(chunk)

    def start_overlap(self, participation: Participation) -> None:
        """Queue the mean of this block's updates for the steps of the next block."""
        self._has_update = True
        places = [chunk.filtered for chunk in self._shard.chunks()]
        self._work = self._queue.add(
            (
                self._mean.of_filtered(self._in_flight[place], place, participation, keep=True)
                for place in places
            ),
            at_once=_AT_ONCE,
            due=self._mean.due * len(places),
            steps=self._steps,
        )

    def keep_local_update_(self) -> None:
        """Replace the block-start weights of the local model in the module by its update.

        A single local model has its update in the transfer buffer.
        """
        if len(self._block_starts) == 1:
            return
        local_update = torch.empty_like(self._block_start)
        for piece, values in self._shard.read_in_pieces(into_buffer=False):
            own = values(piece.filtered)
            self._subtract_start_(own, piece.filtered)
            local_update[piece.filtered].copy_(own)
        self._block_starts[self._models.current] = local_update

    def write_(self) -> None:
        """Write the block-start weights of another local model into its tensors."""
        self._shard.values[self._shard.filtered].copy_(self._block_start)
        super().write_()

    def write_global_(self, participation: Participation, *, pending: bool) -> None:
        """Write W as if training ended here, with the updates in flight and of this block.

        A collective of the world. W, Delta and the update in flight stay as they are.
        """
        self._queue.finish()
        super().write_global_(participation, pending=pending)

    def _write_global_chunk(
        self, chunk: Chunk, participation: Participation, *, pending: bool
    ) -> Stages:
        place = chunk.filtered
        values = self._shard.values[place]
        exact = self._mean.exact(chunk.averaged, participation)
        if pending:
            mean = self._mean.of_filtered(values, place, participation, keep=False)
            yield from side_by_side([mean, exact])
        else:
            yield from exact
        own, update = self._state_at(place)
        own, update = own.clone(), None if update is None else update.clone()
        if self._has_update:
            self._filter.advance_by_(self._in_flight[place].clone(), own, update)
        values.copy_(self._filter.global_after(values, own, update) if pending else own)
        yield from self._shard.distribute(chunk, carried=False)

    def vectors(self) -> dict[str, Tensor]:
        """Delta, the update in flight, and the block-start weights minus W."""
        ahead = self._block_start - self.global_model
        return {**super().vectors(), "in_flight": self._in_flight, "ahead": ahead}

    def read_vector_(self, name: str) -> None:
        """Read one of :meth:`vectors` from the tensors."""
        if name == "ahead":
            ahead = self._shard.read()[self._shard.filtered]
            torch.add(self.global_model, ahead, out=self._block_start)
        else:
            super().read_vector_(name)

    def follow(self, older: DtypeBucket) -> None:
        """Take over whether an update is in flight, and its norms."""
        if isinstance(older, OverlappedBucket):
            self._has_update, self._norms = older._has_update, older._norms

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state; the tensors are not copied. Finishes the update."""
        self._queue.finish()
        return super().state() | {
            "block_start": self._block_start,
            "in_flight": self._in_flight if self._has_update else None,
            "norms": [self._norms.models, self._norms.mean],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a bucket with the same shard."""
        super().load(state)
        self.load_local(state)
        self._has_update = state["in_flight"] is not None
        if self._has_update:
            self._in_flight.copy_(state["in_flight"])
        self._norms = Norms(*state["norms"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Load the block-start weights of the local model in the module."""
        start = state["block_start"].to(self.global_model, copy=True)
        self._block_starts[self._models.current] = start

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from W and Delta of a world with other shards, with nothing in flight.

        A collective of the group.
        """
        super().restart_(global_model, update)
        start = self._filter.start_model(self.global_model, self.update).clone()
        self._block_starts = [start] * self._models.number
