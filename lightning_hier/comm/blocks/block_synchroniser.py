"""Counts steps, and synchronises the models at the ends of blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_context import BlockContext, Membership
from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.evaluation import Evaluation
from lightning_hier.comm.blocks.health import Averaging, SyncPoint
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.schedule import NOTHING_DUE, BlockSchedule, DueFragments
from lightning_hier.comm.blocks.shard_placement import OwnShards, make_placement
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.comm.worker import Worker

# Steps between two checks of all ranks during the warm-up and without blocks. Signals are reported
# there as well, so this limits how late ranks act on SIGTERM.
_CHECK_EVERY = 50


class BlockSynchroniser:
    """Runs the blocks of all optimizers of one rank.

    A step is one call of ``optimizer_step`` of one optimizer. Every rank counts calls and not
    updates, so that ranks stay in step if loss scaling skips an update on one of them.

    Args:
        module: model. Only its trainable parameters and its buffers are used.
        optimizers: optimizers of the module. Each has its own block.
        config: settings. None: models are not synchronised, but ranks are checked to be in step.
        communicators: channels of this rank.
        worker: step counts of this rank.
        warmup_steps: steps before the first block, in which gradients are averaged over the world.
        nics: as in :func:`~lightning_hier.comm.blocks.shard_placement.make_placement`.
        offload: whether the state of outer steps lies in the memory of the host.
        membership: finds the groups that are present, if groups come and go.

    Attributes:
        module, communicators, worker: see above.
        placement: division of the model among the ranks of a group.
        blocks: one block for each optimizer. None before the first step after the warm-up.
        buffers: buffers of the module.
        trained: tensors that are synchronised.
        health: exchange of health reports before every synchronisation.
        evaluation: swaps the global model into the module and back.

    Raises:
        ValueError: the settings do not support the number of groups.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        config: BlockSync | None,
        *,
        communicators: Communicators,
        worker: Worker,
        warmup_steps: int = 0,
        nics: int | None = None,
        offload: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.module = module
        self.communicators = communicators
        self.worker = worker
        self._warmup_steps = warmup_steps
        self._membership = membership
        across, group = config.across if config else "auto", communicators.group
        # Only a module that is not divided inside groups has a choice.
        divided = is_sharded(module)
        self.placement = OwnShards(group) if divided else make_placement(across, group, nics=nics)
        common = self.placement, communicators, offload, membership
        self._contexts = [BlockContext(o, config, *common) for o in optimizers] if config else []
        self._schedules = [
            BlockSchedule(context.config, context.optimizer, models=communicators.models)
            for context in self._contexts
        ]
        self.blocks: list[ModelBlock] | None = None
        self.buffers = ModuleBuffers(module)
        self.trained = TrainedTensors(module, list(optimizers), self.buffers)
        # Of every fragment, and of the buffers.
        counted = config.fragments + 1 if config and config.weighting == "samples" else 0
        self.health = HealthExchange(
            communicators,
            worker,
            self.trained,
            counted=counted,
            independent=membership is not None,
        )
        self.evaluation = Evaluation(self)
        # The last one of the block of each optimizer, by its index.
        self._reports: dict[int, BlockReport] = {}

    @property
    def warming(self) -> bool:
        """Whether any optimizer is in its warm-up."""
        return any(count.total < self._warmup_steps for count in self.worker.steps)

    def before_step(self) -> None:
        """Prepare a step of any optimizer. The first one after the warm-up starts the blocks.

        A collective of the group then, and after parameter groups were added to an optimizer.
        """
        if self.blocks is None and not self.warming:
            self.blocks = self._new_blocks()
        elif self.blocks is not None and any(block.lacks_groups for block in self.blocks):
            self._regrow()

    def after_step(self, optimizer: int) -> None:
        """Count a step, and apply and send the fragments that are due after it.

        A collective of the world if a fragment is sent. In the warm-up, where every step is one,
        and without blocks, ranks check from time to time that they are in step.
        """
        due = self._count_step(optimizer)
        if due == NOTHING_DUE:
            return
        assert self.blocks is not None
        schedule = self._schedules[optimizer]
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
                    own = self._for_commit(optimizer, due.sends)
                    self.blocks[optimizer].begin_commit(due.sends, **own, delay=schedule.delay)
        # After a synchronisation that fails, it is still due.
        schedule.end_block(self.worker.steps[optimizer])
        if report is not None:
            self._reports[optimizer] = report

    def finish_blocks(self) -> None:
        """Synchronise the last, short blocks at the end of training, if groups come and go.

        Otherwise the evaluation at the end does it. A collective of the world.
        """
        for optimizer, block in enumerate(self.blocks or () if self._membership else ()):
            count = self.worker.steps[optimizer]
            # In the order of groups that train on. The first one may have been sent already, and
            # has then the steps since.
            order = self._schedules[optimizer].order_after(count)
            for fragment in [*order, order[0]]:
                if block.unsent(fragment):
                    self.buffers.reclaim()
                    place = self.communicators.progress.at(SyncPoint.TRAINING_END.text)
                    with place, self.worker.memory.group_model(), torch.no_grad():
                        self._commit(optimizer, fragment)
            count.in_block = 0

    def metrics(self) -> dict[str, float]:
        """Metrics of the last synchronisations by name. Does not communicate."""
        metrics: dict[str, float] = {}
        for index, report in self._reports.items():
            count = self.worker.steps[index]
            # Names without an index for the usual single optimizer.
            prefix = "hier/block" if len(self.worker.steps) == 1 else f"hier/block/{index}"
            metrics[f"{prefix}/update_norm"] = report.update_norm
            metrics[f"{prefix}/model_distance"] = report.model_distance
            metrics[f"{prefix}/blocks"] = count.blocks
            if count.block_size:  # a rule computes it
                metrics[f"{prefix}/block_size"] = count.block_size
        return metrics

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
        if self._schedules[optimizer].delay:
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

    def _for_commit(self, optimizer: int, fragment: int) -> dict[str, Any]:
        agree = partial(self.health.agree, SyncPoint.BLOCK, optimizer)
        return {"agree": agree, "name": f"fragment {fragment} of optimizer {optimizer}"}

    def _check(self, optimizer: int) -> None:
        """Check that all ranks are in step and their model is finite. A collective of the world."""
        with self.communicators.progress.at(SyncPoint.CHECK.text):
            self.buffers.reclaim()
            self.health.check(SyncPoint.CHECK, optimizer)
            self.admit_found()

    def _end_warm_up(self) -> None:
        """Make the groups' models equal bit for bit, including buffers."""
        with self.communicators.progress.at("the end of the warm-up"), torch.no_grad():
            # These blocks only create the optimizer state that is averaged, where it is missing.
            carried = [t for block in self._new_blocks() or [] for t in block.carried]
            # Before the broadcast, which would spread a NaN of the first rank.
            self.health.check(SyncPoint.CHECK, carried=carried)
            self.admit_found()
            everything = [*self.module.parameters(), *self.buffers.tensors, *carried]
            replicas = self.communicators.replicas(self.module)
            broadcast_tensors_(everything, replicas, "initial_model")

    def _new_blocks(self) -> list[ModelBlock] | None:
        """Blocks that start with the current model. None if models are not synchronised.

        A collective of the group.
        """
        if not self._contexts:
            return None
        self.buffers.reclaim()
        return [*map(ModelBlock, self.trained.members(), self._contexts)]

    def present_blocks(self) -> Sequence[ModelBlock]:
        """The blocks or, before the first step after the warm-up, those that it will start.

        A collective of the group. Without a synchronisation of models, there are none.
        """
        return self.blocks or self._new_blocks() or ()

    def open_blocks(self, trainable: Collection[Parameter]) -> Sequence[ModelBlock]:
        """Start blocks with the current model, whose ``trainable`` were trained in an older run."""
        self.trained.add(trainable)
        self.blocks = self._new_blocks()
        return self.blocks or ()

    def rewind(self) -> None:
        """Discard blocks, residuals and saved values before an older state is loaded."""
        self.communicators.route.in_flight.finish()  # exchanges of these blocks
        self.blocks = None
        self.worker.memory.clear()
        self.evaluation.forget()
        self._reports.clear()

    def forget_errors(self) -> None:
        """Discard residuals and error feedback, those of another group whose state was loaded."""
        self.worker.memory.write_shared()
        self.worker.memory.clear()
        for block in self.blocks or ():
            block.forget_errors()

    def admit_found(self) -> Sequence[Tensor]:
        """Synchronise from now on what ranks have found in an exchange. Returns these tensors.

        A collective of the group if there are any, at the same step on all ranks.
        """
        found = self.trained.admit_found()
        if found:
            self._regrow()
        return found

    def admit_trainable(self, present: set[Parameter]) -> None:
        """Add those of the module's parameters ``present`` that were unfrozen since the last call.

        A parameter that was trainable once stays in the global model. It is a collective of the
        ranks that average gradients, as long as some parameters have never been trainable. If ranks
        have different parameters, they raise an error, and other groups at the next health report.
        """
        if present <= self.trained.parameters:
            return
        new = self.trained.admit(present)
        channel = self.communicators.world if self.warming else self.communicators.group
        if not self.health.same_parameters_in(channel):
            self.health.check_in_step(SyncPoint.CHECK)
        if new:
            self._regrow()

    def _regrow(self) -> None:
        """Give the blocks the tensors that have been added. A collective of the group."""
        if self.blocks is not None:
            self.buffers.reclaim()
            grown = zip(self.blocks, self.trained.members(), strict=True)
            self.blocks = [block.regrown(members) for block, members in grown]
