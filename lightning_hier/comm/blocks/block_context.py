"""What the fragments of an optimizer have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.bucket import Merge
from lightning_hier.comm.blocks.outer_step import EtaOf, OuterStep
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import PeerError


class Membership(Protocol):
    """Finds the groups that are present, and agrees with them whether a synchronisation counts."""

    def begin(self, name: str, attempt: Callable[[], None]) -> None:
        """Begin the first attempt of the next :meth:`synchronise`, some steps before it."""

    def fail(self, error: PeerError) -> None:
        """Give up what has begun, because it has failed on this rank. Does not communicate."""

    def synchronise(
        self,
        name: str,
        attempt: Callable[[], None],
        complete: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """Exchange with the groups that are present, until an attempt has succeeded in all.

        A collective of this rank's group.

        Args:
            name: name of what is exchanged, the same in all groups.
            attempt: starts an exchange with the groups.
            complete: completes it.
            undo: restores the state before ``attempt``, which has failed in some group.

        """


@dataclass(frozen=True)
class BlockContext:
    """What all fragments of an optimizer have in common.

    Attributes:
        optimizer: optimizer of the parameters.
        config: settings of block synchronisation.
        placement: division of a fragment among the ranks of a group.
        communicators: channels of this rank.
        offload: whether the state of outer steps lies in the memory of the host.
        membership: finds the groups that are present, if groups come and go. They agree on the
            success of a synchronisation before they apply it.

    """

    optimizer: Optimizer
    config: BlockSync
    placement: ShardPlacement
    communicators: Communicators
    offload: bool = False
    membership: Membership | None = None

    @cached_property
    def averages(self) -> bool:
        """Whether there is more than one model."""
        return self.communicators.models > 1

    @cached_property
    def delayed(self) -> bool:
        """Whether means are applied some steps after updates are sent."""
        return self.averages and bool(self.config.overlap)

    @cached_property
    def merge(self) -> Merge:
        """What becomes of a local model when the start model arrives.

        ``"progress"`` is a number where there are no steps between sending and applying: 0.
        """
        return self.config.merge if self.delayed or self.config.merge != "progress" else 0.0

    @cached_property
    def eta_of(self) -> EtaOf | None:
        """Computes the momentum of a mean, or None if it is the same for every mean."""
        varies = self.config.weighting == "samples" or self.membership is not None
        return self.config.eta_of(self.communicators.models) if varies else None

    def outer_step(self, model: Tensor, *, from_updates: bool) -> OuterStep:
        """Outer step of a shard, which starts from a copy of ``model``."""
        return OuterStep(
            self.config.outer_of(self.communicators.models),
            model,
            # Weights are rounded, so that their sum is not exactly 1: models would shrink or grow.
            from_updates=from_updates or self.config.weighting == "samples",
            eta_of=self.eta_of,
            offload=self.offload,
        )
