"""Delay of a fragment: its mean local update is computed during the next block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.stages import OverlapQueue, Pipeline, Stages

# Chunks in flight at the same time, enough to keep a link busy between two steps.
_AT_ONCE = 8


class Delay:
    """Applies the mean local update of a fragment one block late (overlap).

    The local update ``u_k(t)`` of group k in block t is its model at the end of the block minus its
    block-start weights. The mean of the updates is computed during block t + 1, and the local
    update of block t + 1 is kept. At the end of block t + 1::

        G(t)       = mean over k of u_k(t)
        Delta(t)   = eta * Delta(t-1) + zeta * G(t)
        W(t)       = W(t-1) + Delta(t)
        w_k(t + 2) = W_g(t) + u_k(t + 1)          block-start weights of group k in block t + 2

    with W_g as in :class:`~lightning_hier.algorithms.block_momentum.BlockFilter`. Every u is
    part of a mean exactly once, one block late. Buffers are averaged without delay.

    This rank keeps its shard of w_k, for each of its local models, and of the update in flight,
    which is the sum over its local models.

    Args:
        outer: outer step of the fragment.
        models: local models of this rank.
        queue: queue that computes means during training steps.
        steps: number of steps over which the collectives of a mean are distributed.

    Attributes:
        in_flight: this rank's shard of the update in flight.
        has_update: whether an update is in flight.
        norms: norms of the models whose update is in flight, and of the buffers averaged at once.

    """

    def __init__(
        self, outer: OuterStep, models: LocalModels, queue: OverlapQueue, steps: int
    ) -> None:
        self._outer = outer
        self._models = models
        self._queue = queue
        self._steps = steps
        self._work: Pipeline | None = None
        model = outer.vectors["global_model"]
        # All local models share the start weights until the end of their first block.
        self._block_starts = [model.clone()] * models.number
        self.in_flight = torch.zeros_like(model)
        self.has_update = False
        self.norms = Norms(0.0)

    @property
    def block_start(self) -> Tensor:
        """This rank's shard of the block-start weights of the local model in the module."""
        return self._block_starts[self._models.current]

    @block_start.setter
    def block_start(self, weights: Tensor) -> None:
        self._block_starts[self._models.current] = weights

    def prepare_(self, model: Tensor, place: slice) -> float:
        """Turn a range of the local model into its update, in place. Returns its sum of squares."""
        start = self.block_start[place]
        return kernels_for(model, start).subtract_start_(model, start, None, 0.0)

    def wait(self, *, everything: bool) -> None:
        """Wait for the update in flight, or for ``everything`` in flight on the process groups."""
        if everything:
            self._queue.finish()
        elif self._work is not None:
            self._queue.finish(self._work)

    def apply_(self, values: Tensor, place: slice, *, takes_part: bool) -> tuple[float, float]:
        """Apply the mean update of the previous block, in place.

        Args:
            values: local update of this block, which becomes the update in flight. Overwritten with
                the block-start weights of the next block.
            place: range of the update.
            takes_part: whether the model of this rank's group is finite.

        Returns:
            The sums of squares of the mean update and of Delta.

        """
        arrived, squares = self.in_flight[place], (0.0, 0.0)
        if self.has_update:
            squares = self._outer.apply_(arrived, place)
        else:
            arrived.copy_(self._outer.start_model(place))
        # Now `arrived` is W_g.
        start = self.block_start[place]
        if len(self._block_starts) > 1:
            for update in self._block_starts:
                update[place].add_(arrived)
        elif takes_part:
            torch.add(arrived, values, out=start)
        else:
            start.copy_(arrived)
        arrived.copy_(values)
        values.copy_(start)
        return squares

    def start(self, means: Iterable[Stages], due: int) -> None:
        """Queue the mean of the update in flight for the steps of the next block.

        Args:
            means: generator of each chunk.
            due: number of :class:`~lightning_hier.comm.stages.Due` that they yield.

        """
        self.has_update = True
        self._work = self._queue.add(means, at_once=_AT_ONCE, due=due, steps=self._steps)

    def arrived(self, place: slice) -> Tensor | None:
        """The mean update of a range that has not been applied yet, or None."""
        return self.in_flight[place] if self.has_update else None

    def restart(self) -> None:
        """Start a block from the start model, with no update in flight."""
        start = self._outer.start_model(slice(None)).clone()
        self._block_starts = [start] * self._models.number

    @property
    def vectors(self) -> dict[str, Tensor]:
        """State vectors with one value per element of W."""
        return {"block_start": self.block_start, "in_flight": self.in_flight}

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, without copying tensors. Waits for the mean in flight."""
        self._queue.finish()
        return {
            "block_start": self.block_start,
            "in_flight": self.in_flight if self.has_update else None,
            "norms": [self.norms.models, self.norms.mean],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shard."""
        self.load_local(state)
        self.has_update = state["in_flight"] is not None
        if self.has_update:
            self.in_flight.copy_(state["in_flight"])
        self.norms = Norms(*state["norms"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Load the block-start weights of the local model in the module."""
        self.block_start = state["block_start"].to(self.in_flight, copy=True)
