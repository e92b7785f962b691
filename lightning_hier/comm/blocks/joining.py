"""Synchronisations of ranks without batches, while other ranks have batches left."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lightning_hier.comm.blocks.health import SyncPoint
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.out_of_step import OutOfStepError
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import named_ranks
from lightning_hier.comm.worker import Worker


class Joining:
    """Joins the synchronisations of other ranks until no rank has batches left.

    The rank takes part with an unchanged model: at the first synchronisation a model with the first
    steps of the block, later the start model, whose update is zero. All models have the same weight
    in the mean, so that every mini-batch of the epoch has the same weight (C of bmuf eq. 10). If
    groups count by samples, a start model has no weight. The rank counts the steps of the other
    ranks, so later blocks end on all ranks together.

    Args:
        communicators: channels of this rank.
        worker: step counts of this rank.
        health: exchange of health reports.
        after_step: counts a step of an optimizer, and applies and sends the fragments that are due.

    """

    def __init__(
        self,
        communicators: Communicators,
        worker: Worker,
        health: HealthExchange,
        after_step: Callable[[int], None],
    ) -> None:
        self._communicators = communicators
        self._worker = worker
        self._health = health
        self._after_step = after_step

    def run(self) -> bool:
        """Join until no rank has batches left. Every rank must call it at the end of its batches.

        Returns:
            True if no rank has batches left. False if a rank has reported a signal: the caller acts
            on it together with the other ranks, and calls this method again.

        Raises:
            OutOfStepError: on every rank, if another rank reaches a synchronisation that is not the
                end of a block, or if a rank had no batch at all.

        """
        # Other ranks act on a signal at the end of their batch, so none may wait for their reports.
        while not self._health.signalled:
            place = f"{SyncPoint.OUT_OF_DATA.text}, after {self._health.batches}"
            with self._communicators.progress.at(place):
                # Steps of other ranks may wait for this rank's part of an overlapped exchange.
                self._communicators.route.in_flight.finish()
                others = self._health.report_out_of_data()
                if others is None:
                    # The last steps of the longest epoch, after its last synchronisation.
                    self._adopt_highest_counts()
                    return True
                self._count_steps(others.optimizer, others.steps)
        return False

    def _adopt_highest_counts(self) -> None:
        """Set the step counts to those of the rank with the most steps."""
        counts, world = self._worker.steps, self._communicators.world
        row = torch.tensor(
            [self._health.batches, *(count.total for count in counts)],
            device=self._communicators.device,
        )
        batches, *totals = world.gather_rows(row, "status").T.tolist()
        idle = [rank for rank, number in enumerate(batches) if number == 0]
        if 0 < len(idle) < world.size:
            raise OutOfStepError(
                f"{named_ranks(idle)} had no batch in this epoch, but the "
                f"others up to {max(batches)}: every rank needs at least one batch, also with "
                "uneven_batches='join'"
            )
        for optimizer, total in enumerate(map(max, totals)):
            self._count_steps(optimizer, total)

    def _count_steps(self, optimizer: int, total: int) -> None:
        """Count steps without gradients up to ``total``."""
        # One by one, because means of delayed fragments may be applied at any of them.
        for _ in range(total - self._worker.steps[optimizer].total):
            self._after_step(optimizer)
