"""The mean over the groups of a part of the model, chunk by chunk: exactly, or in a short form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.averaging import Averaging
from lightning_hier.comm.blocks.health import Verdict
from lightning_hier.comm.blocks.leftovers import Leftovers
from lightning_hier.comm.blocks.share import Chunk, Share
from lightning_hier.comm.stages import Stages, side_by_side


class PartMean:
    """Averages this rank's share in its transfer buffer, in place.

    All methods that return stages are collectives of the ranks that average.

    Args:
        share: of this rank, of one dtype.
        coder: the short form in which what is filtered travels; None is none.
        route: who exchanges with whom.

    """

    def __init__(self, share: Share, coder: Codec | None, route: AcrossRoute) -> None:
        self._share = share
        self._coder = coder
        self._averaging = Averaging(route)
        self._leftovers = (
            Leftovers(
                share.filtered.stop - share.filtered.start,
                chunk=share.chunk,
                lanes=route.lanes,
                like=share.values,
            )
            if coder is not None and route.between is not None
            else None
        )

    @property
    def due(self) -> int:
        """How many :class:`~lightning_hier.comm.stages.Due` :meth:`of_filtered` yields."""
        return self._averaging.due(self._coder)

    def of_chunk(
        self, chunk: Chunk, verdict: Verdict, *, keep: bool, carried: bool = True
    ) -> Stages:
        """Average all that a chunk holds.

        Args:
            chunk: of the share.
            verdict: whose values are averaged.
            keep: whether what rounding leaves over now replaces what it has left over before.
            carried: whether the state of local optimizers is averaged too.

        """
        if self._coder is None:
            # All that travels in the same form travels in one collective.
            end = self._share.carried.stop if carried else self._share.carried.start
            return self.exact(slice(min(chunk.start, end), min(chunk.stop, end)), verdict)
        place = chunk.filtered
        mean = self.of_filtered(self._share.values[place], place, verdict, keep=keep)
        others = []
        if chunk.averaged.start < chunk.averaged.stop:
            others.append(self.exact(chunk.averaged, verdict))
        if carried and chunk.carried.start < chunk.carried.stop:
            others.append(self._of_state(chunk.carried, verdict))
        return side_by_side([mean, *others]) if others else mean

    def of_filtered(self, piece: Tensor, place: slice, verdict: Verdict, *, keep: bool) -> Stages:
        """Average values, in place, that belong to a stretch of the filtered share.

        Args:
            piece: the values.
            place: the stretch.
            verdict: as in :meth:`of_chunk`.
            keep: as in :meth:`of_chunk`.

        """
        if self._coder is None:
            return self._averaging.exact(_weigh_(piece, verdict))
        if not verdict.takes_part:
            piece.zero_()
        leftover = self._leftovers.of(place, keep=keep) if self._leftovers else None
        weight = 1.0 / verdict.healthy
        return self._averaging.coded(piece, self._coder, leftover, weight=weight)

    def exact(self, place: slice, verdict: Verdict) -> Stages:
        """Average a stretch of the share as it is."""
        return self._averaging.exact(_weigh_(self._share.values[place], verdict))

    def _of_state(self, place: slice, verdict: Verdict) -> Stages:
        """Of local optimizers, whose short form is bfloat16.

        Second moments span too many orders of magnitude for whole numbers with a common scale.
        """
        piece = _weigh_(self._share.values[place], verdict)
        return self._averaging.coded(piece, BFloat16Codec(), None)

    def state(self) -> dict[str, Any] | None:
        """What rounding has left over, for a checkpoint; the tensors are not copied."""
        return None if self._leftovers is None else self._leftovers.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Take over what :meth:`state` gave, from a run with the same chunks and ranks."""
        if self._leftovers is not None and state is not None:
            self._leftovers.load(state)


def _weigh_(piece: Tensor, verdict: Verdict) -> Tensor:
    """Make ``piece`` this group's summand of the mean over the healthy groups, in place."""
    # Dividing would leave the NaN.
    return piece.div_(verdict.healthy) if verdict.takes_part else piece.zero_()
