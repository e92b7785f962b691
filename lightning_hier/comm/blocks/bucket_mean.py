"""Mean over the groups of a dtype bucket, chunk by chunk, and the settings of buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.averaging import AcrossDtype, Averaging, ErrorFeedback
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.stages import Stages, side_by_side


@dataclass(frozen=True)
class BucketSettings:
    """Settings that all buckets of a block share.

    Attributes:
        local_state: of the local optimizer.
        block_filter: equations of the global model.
        placement: division of the model among the ranks of a group.
        route: process groups of the ranks that average.
        across_dtype: data type of updates between groups.
        models: local models of this rank.
        block_size: steps of a block.

    """

    local_state: LocalState
    block_filter: BlockFilter
    placement: ShardPlacement
    route: AcrossRoute
    across_dtype: AcrossDtype
    models: LocalModels
    block_size: int


class BucketMean:
    """Averages this rank's shard in its transfer buffer, in place.

    Methods that return stages are collectives of the ranks that average.

    Args:
        shard: of this rank.
        codec: of updates of filtered tensors; None exchanges them without quantisation.
        route: process groups of the ranks that average.

    """

    def __init__(self, shard: Shard, codec: Codec | None, route: AcrossRoute) -> None:
        self._shard = shard
        self._codec = codec
        self._averaging = Averaging(route)
        self._feedback = (
            ErrorFeedback(
                shard.filtered.stop - shard.filtered.start,
                chunk=shard.chunk,
                inter_host_ranks=route.inter_host_ranks,
                like=shard.values,
            )
            if codec is not None and route.between is not None
            else None
        )

    @property
    def due(self) -> int:
        """Number of :class:`~lightning_hier.comm.stages.Due` that :meth:`of_filtered` yields."""
        return self._averaging.due(self._codec)

    def of_chunk(
        self, chunk: Chunk, participation: Participation, *, keep: bool, carried: bool = True
    ) -> Stages:
        """Average all tensors of a chunk.

        Args:
            chunk: of the shard.
            participation: groups that take part.
            keep: whether the error feedback is updated.
            carried: whether the state of local optimizers is averaged too.

        """
        if self._codec is None:
            # One collective for everything that is not quantised.
            end = self._shard.carried.stop if carried else self._shard.carried.start
            return self.exact(slice(min(chunk.start, end), min(chunk.stop, end)), participation)
        place = chunk.filtered
        mean = self.of_filtered(self._shard.values[place], place, participation, keep=keep)
        others = []
        if chunk.averaged.start < chunk.averaged.stop:
            others.append(self.exact(chunk.averaged, participation))
        if carried and chunk.carried.start < chunk.carried.stop:
            # Second moments span too many orders of magnitude for integers with a common scale.
            state = _weigh_(self._shard.values[chunk.carried], participation)
            others.append(self._averaging.quantised(state, BFloat16Codec(), None))
        return side_by_side([mean, *others]) if others else mean

    def of_filtered(
        self, piece: Tensor, place: slice, participation: Participation, *, keep: bool
    ) -> Stages:
        """Average values of filtered tensors, in place.

        Args:
            piece: the values.
            place: their range in the shard.
            participation: groups that take part.
            keep: whether the error feedback is updated.

        """
        if self._codec is None:
            return self._averaging.exact(_weigh_(piece, participation))
        if not participation.takes_part:
            piece.zero_()
        feedback = self._feedback.of(place, keep=keep) if self._feedback else None
        weight = 1.0 / participation.healthy
        return self._averaging.quantised(piece, self._codec, feedback, weight=weight)

    def exact(self, place: slice, participation: Participation) -> Stages:
        """Average a range of the shard without quantisation."""
        return self._averaging.exact(_weigh_(self._shard.values[place], participation))

    def state(self) -> dict[str, Any] | None:
        """Error feedback for a checkpoint; the tensors are not copied."""
        return None if self._feedback is None else self._feedback.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load a state that was saved with the same chunks and ranks."""
        if self._feedback is not None and state is not None:
            self._feedback.load(state)


def _weigh_(piece: Tensor, participation: Participation) -> Tensor:
    """Make ``piece`` this group's summand of the mean over the healthy groups, in place."""
    # A product with zero would keep NaN.
    return piece.div_(participation.healthy) if participation.takes_part else piece.zero_()
