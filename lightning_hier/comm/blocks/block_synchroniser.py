"""Counts steps, and synchronises the models at the ends of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_context import Membership
from lightning_hier.comm.blocks.block_report import BlockLog, BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.evaluation import Evaluation
from lightning_hier.comm.blocks.health import Averaging, SyncPoint
from lightning_hier.comm.blocks.schedule import NOTHING_DUE, BlockSchedule, DueFragments
from lightning_hier.comm.blocks.synchronised_model import SynchronisedModel
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError

# Steps between two checks of all ranks during the warm-up and without blocks. Signals are reported
# there as well, so this limits how late ranks act on SIGTERM.
_CHECK_EVERY = 50


class BlockSynchroniser(SynchronisedModel):
    """Runs the blocks of all optimizers of one rank.

    A step is one call of ``optimizer_step`` of one optimizer. Every rank counts calls and not
    updates, so that ranks stay in step if loss scaling skips an update on one of them.

    Arguments, attributes and errors are those of :class:`SynchronisedModel`, and

    Attributes:
        evaluation: swaps the global model into the module and back.
        log: metrics of the synchronisations.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        config: BlockSync | None,
        *,
        membership: Membership | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(module, optimizers, config, membership=membership, **settings)
        self._membership = membership
        self._schedules = [
            BlockSchedule(context.config, context.optimizer, models=self.communicators.models)
            for context in self._contexts
        ]
        self.log = BlockLog(len(optimizers))
        self.evaluation = Evaluation(self, finish_blocks=self.finish_blocks)

    def after_step(self, optimizer: int) -> None:
        """Count a step, and apply and send the fragments that are due after it.

        A collective of the world if a fragment is sent. In the warm-up, where every step is one,
        and without blocks, ranks check from time to time that they are in step.
        """
        due = self._count_step(optimizer)
        if due == NOTHING_DUE:
            return
        assert self.blocks is not None
        schedule = self._schedules[optimizer].current
        # To apply a mean, only the ranks of a group communicate.
        place = self.communicators.progress.at(SyncPoint.BLOCK.text)
        votes = self._membership is not None
        shared = self.worker.memory.group_model()
        with place if votes or due.sends is not None else nullcontext(), shared, torch.no_grad():
            self.buffers.reclaim()  # the step may have bound new tensors to their names
            report: BlockReport | None = None
            with profiler_range("hier/block/synchronisation"):
                if not votes:
                    agreed = None if due.sends is None else self._agree(optimizer, due.sends)
                    report = self.blocks[optimizer].synchronise(due, agreed, delay=schedule.delay)
                elif due.applies is not None:
                    report = self._commit(optimizer, due.applies)
                elif due.sends is not None:
                    self._begin_commit(optimizer, due.sends, schedule.delay)
        # After a synchronisation that fails, it is still due.
        schedule.end_block(self.worker.steps[optimizer])
        if report is not None:
            self.log.reports[optimizer] = report

    def finish_blocks(self) -> None:
        """Synchronise the last, short blocks at the end of training, if groups come and go.

        Otherwise the evaluation at the end does it. A collective of the world.
        """
        for optimizer, block in enumerate(self.blocks or () if self._membership else ()):
            count = self.worker.steps[optimizer]
            # In the order of groups that train on. The first one may have been sent already, and
            # has then the steps since.
            order = self._schedules[optimizer].current.order_after(count.in_block)
            for fragment in [*order, order[0]]:
                if block.unsent(fragment):
                    self.buffers.reclaim()
                    place = self.communicators.progress.at(SyncPoint.TRAINING_END.text)
                    with place, self.worker.memory.group_model(), torch.no_grad():
                        self._commit(optimizer, fragment)
            count.in_block = 0

    def _count_step(self, optimizer: int) -> DueFragments:
        """Count a step, and advance what is in flight by it. Returns the fragments that are due.

        In the warm-up and without blocks, none is due, and ranks check from time to time that they
        are in step. Every rank must call it at the same step.
        """
        count, warming = self.worker.steps[optimizer], self.blocks is None and self.warming
        samples, self.worker.samples[optimizer] = self.worker.samples[optimizer], 0.0
        count.total += 1
        if warming:
            if not self.warming:
                self._end_warm_up()
            elif count.total % _CHECK_EVERY == 0:
                self._check(optimizer)
            return NOTHING_DUE
        count.in_block += 1
        if self.blocks is None:
            if count.in_block >= _CHECK_EVERY:
                count.in_block = 0
                self._check(optimizer)
            return NOTHING_DUE
        self.blocks[optimizer].count_step(samples)
        due = self._schedules[optimizer].due(count)
        if self._schedules[optimizer].current.delay:
            # Ranks must count the same steps, also those that send nothing.
            try:
                self.communicators.route.in_flight.step()
            except PeerError as error:
                if self._membership is None:
                    raise
                self._membership.fail(error)
        return due

    def _agree(self, optimizer: int, fragment: int) -> Averaging:
        """Read the fragment that is sent, and agree with all ranks on how it is averaged.

        A collective of the world.
        """
        assert self.blocks is not None
        agree = partial(self.health.agree, SyncPoint.BLOCK, optimizer)
        # Before any model is sent, so that NaN stays in its group and an error is on all ranks.
        averaging = agree(self.blocks[optimizer].read(fragment))
        if self.admit_found():
            averaging = agree(self.blocks[optimizer].read(fragment))
        return averaging

    def _commit(self, optimizer: int, fragment: int) -> BlockReport | None:
        """Synchronise a fragment with the groups that are present. A collective of the group."""
        assert self.blocks is not None
        report = self.blocks[optimizer].commit(fragment, **self._for_commit(optimizer, fragment))
        self.admit_found()  # from the next block on
        return report

    def _begin_commit(self, optimizer: int, fragment: int, delay: int) -> None:
        """Send a fragment to the groups that are present. A collective of the group."""
        assert self.blocks is not None
        own = self._for_commit(optimizer, fragment)
        self.blocks[optimizer].begin_commit(fragment, **own, delay=delay)

    def _for_commit(self, optimizer: int, fragment: int) -> dict[str, Any]:
        agree = partial(self.health.agree, SyncPoint.BLOCK, optimizer)
        return {"agree": agree, "name": f"fragment {fragment} of optimizer {optimizer}"}

    def _check(self, optimizer: int) -> None:
        """Check that all ranks are in step and their model is finite. A collective of the world."""
        with self.communicators.progress.at(SyncPoint.CHECK.text):
            self.buffers.reclaim()
            self.health.check(SyncPoint.CHECK, optimizer)
            self.admit_found()

    def rewind(self) -> None:
        """Discard blocks, residuals and saved values before an older state is loaded."""
        self.communicators.route.in_flight.finish()  # exchanges of these blocks
        self.blocks = None
        self.worker.memory.clear()
        self.evaluation.forget()
        self.log.reports.clear()

    def _end_warm_up(self) -> None:
        """Make the groups' models equal bit for bit, including buffers."""
        with self.communicators.progress.at("the end of the warm-up"), torch.no_grad():
            # These blocks only create the optimizer state that is averaged, where it is missing.
            carried = [t for block in self.new_blocks() or [] for t in block.carried]
            # Before the broadcast, which would spread a NaN of the first rank.
            self.health.check(SyncPoint.CHECK, carried=carried)
            self.admit_found()
            everything = [*self.module.parameters(), *self.buffers.tensors, *carried]
            replicas = self.communicators.replicas(self.module)
            broadcast_tensors_(everything, replicas, "initial_model")
