"""Ranks that have run out of batches join the synchronisations of those that have not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.health_report import OutOfStepError, SyncPoint, span
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker


class Joining:
    """What a rank does from its last batch of an epoch to the last batch of all ranks.

    It takes part in every synchronisation with its model as it is. Between its last step and its
    next synchronisation that is a model with a few steps of the block, later the start model, whose
    update is zero. Its weight in the mean stays that of every model, so that every mini-batch of
    the epoch has the same weight (C of bmuf eq. 10). It counts the steps of the ranks that go on,
    and so its blocks end with theirs also later.

    Args:
        communicators: channels of this rank.
        worker: counts of the worker that this rank plays.
        health: of this rank.
        synchronise: ends the block of an optimizer; a collective of the world.

    """

    def __init__(
        self,
        communicators: Communicators,
        worker: Worker,
        health: HealthExchange,
        synchronise: Callable[[int], None],
    ) -> None:
        self._communicators = communicators
        self._worker = worker
        self._health = health
        self._synchronise = synchronise

    def run(self) -> bool:
        """Join until no rank has batches left. Every rank must call it at the end of its batches.

        Returns:
            Whether that has come; False: some rank got a signal, on which all act now.

        Raises:
            OutOfStepError: on every rank, if others come to something that can't be joined, or if
                a rank has had no batch at all.

        """
        while not self._health.signalled:
            place = f"{SyncPoint.OUT_OF_DATA.text}, after {self._health.out_after}"
            with self._communicators.progress.at(place):
                # The steps of others wait for this rank's part in it.
                self._communicators.route.in_flight.finish()
                others = self._health.meet_at_end()
                if others is None:
                    self._count_like_the_longest()
                    return True
                self._worker.steps[others.optimizer].total = others.steps
                self._synchronise(others.optimizer)
        return False

    def _count_like_the_longest(self) -> None:
        """Count the steps of the rank that has taken most, since the last synchronisation too."""
        counts, world = self._worker.steps, self._communicators.world
        own = torch.tensor(
            [self._health.out_after, *(count.total for count in counts)],
            device=self._communicators.device,
        )
        rows = own.new_empty(world.size * own.numel())
        world.all_gather(rows, own, "status").wait()
        batches, *totals = rows.view(world.size, -1).T.tolist()
        idle = [rank for rank, number in enumerate(batches) if number == 0]
        if 0 < len(idle) < world.size:
            raise OutOfStepError(
                f"rank{'s' * (len(idle) > 1)} {span(idle)} had no batch in this epoch, and the "
                f"others up to {max(batches)}: even with uneven_batches='join' every rank needs one"
            )
        for count, total in zip(counts, map(max, totals), strict=True):
            count.in_block += total - count.total
            count.total = total
