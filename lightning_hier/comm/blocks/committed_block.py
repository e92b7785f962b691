"""Block synchronisation of groups that come and go: it counts in all groups, or in none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import BlockReport, Norms
from lightning_hier.comm.blocks.exchange import weigh_
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.blocks.schedule import DueFragments
from lightning_hier.comm.blocks.sums import exact_sum
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import broadcast_tensors_, by_dtype
from lightning_hier.comm.flat import FlatView
from lightning_hier.comm.stages import Pipeline


class CommittedBlock(ModelBlock):
    """A block whose means are written only after all groups have agreed that they count.

    It has one fragment without delay, which is sent and applied as a delayed one. If a group is
    lost in between, :meth:`undo` restores the state before, and the groups that are left repeat the
    synchronisation.

    Arguments are those of :class:`ModelBlock`.
    """

    def __init__(self, members: Members, context: BlockContext) -> None:
        super().__init__(members, context)
        self._before: Sequence[dict[str, Any]] | None = None
        self._means: list[tuple[FlatView, Tensor]] = []

    def commit(self, agree: Callable[[ModelHealth], Averaging]) -> Averaging:
        """Read, and exchange with the groups that are present, until it counts in all of them.

        :meth:`synchronise` must follow. If an error is raised, the state is that before the call.
        A collective of this rank's group.

        Args:
            agree: agrees on the groups that take part, again for every attempt, from the health of
                what was read.

        Returns:
            That of the attempt that counts.

        Raises:
            NonFiniteModelError: on every rank of this group, if its model is not finite.

        """
        membership = self._context.membership
        assert membership is not None, "the context of a committed block has one"

        # In this group alone: one whose model is not finite ends before the others count on it.
        agree(self.read(0))
        agreed: list[Averaging] = []

        def attempt() -> None:
            self.begin()
            agreed.append(agree(self.read(0)))
            self.send(agreed[-1])

        try:
            membership.synchronise(attempt, self.undo)
        except BaseException:
            self.undo()  # a callback may save a checkpoint of this run
            raise
        return agreed[-1]  # that of the last attempt, which has succeeded in all groups

    def begin(self) -> None:
        """Keep what :meth:`undo` restores. Does not communicate.

        The number of groups that are present may have changed. Vectors are not copied, because a
        synchronisation changes them only when it is applied, but error feedback is.
        """
        states = self.state()
        for state in states:
            for bucket_state in state["buckets"]:
                errors = bucket_state["error_feedback"] or {}
                copies = {n: v.clone() if isinstance(v, Tensor) else v for n, v in errors.items()}
                bucket_state["error_feedback"] = copies or None
        self._before = states
        # After the state is kept, so that undo() also restores the former division.
        groups = self._context.communicators.route.inter_host_ranks
        for fragment in self._all:
            for bucket in fragment.buckets:
                bucket.exchange.fit(groups)

    def send(self, averaging: Averaging) -> None:
        """Compute the means, after :meth:`read`, and write nothing into the module.

        A collective of the ranks at this position in all groups. A rank that fails does not keep
        the other ranks of its group waiting.
        """
        (fragment,) = self._fragments  # membership refuses several fragments
        fragment.send(averaging.of(0), Norms(averaging.mean_squares), delay=1)
        # At once and not at the next step.
        self._context.communicators.route.in_flight.finish()
        # A vote on the success follows, before which every collective must be complete.
        fragment.local_state.wait()
        self._means = [*self._averaged(averaging.of(1)), *self._copied()]

    @override
    def synchronise(
        self, due: DueFragments, averaging: Averaging | None, *, delay: int = 0
    ) -> BlockReport:
        """Write the start model of the next block, after :meth:`commit`, from its means.

        A collective of the group.
        """
        (fragment,) = self._fragments
        norms = fragment.apply()
        assert norms is not None, "an update was sent"
        for view, values in self._means:
            view.write_from(values)
        # Each rank has those of the rank at its position in the first group, where they may differ.
        group = self._context.communicators.group
        broadcast_tensors_(self.members.other_buffers, group, "buffers")
        # Their means are written above, and not by the fragment itself.
        for buffers in self._buffers:
            buffers.steps, buffers.samples = 0, 0.0
        self._means, self._before = [], None
        self._release_buffers()
        return BlockReport.of(norms, self._context.communicators)

    def undo(self) -> None:
        """Restore the state before :meth:`begin`, if it was called. Does not communicate."""
        if self._before is not None:
            # Collectives in flight could otherwise still write into the restored vectors.
            self._context.communicators.route.in_flight.abandon()
            self.load(self._before)
        self._means, self._before = [], None

    def write_global_model(self, averaging: Averaging) -> None:
        """Write W of the last synchronisation into the parameters, in place.

        Other groups take no part, so W is not the mean of the current local models. Buffers keep
        the values of this group. A collective of the group.
        """
        (fragment,) = self._fragments
        Pipeline(fragment.write_global(averaging, pending=False)).run()
        fragment.finish_global()
        self._release_buffers()

    def forget_errors(self) -> None:
        """Set the error feedback to zero, which belongs to the group that has sent this state."""
        for fragment in self._all:
            for bucket in fragment.buckets:
                bucket.exchange.forget()

    def _averaged(self, averaging: Averaging) -> list[tuple[FlatView, Tensor]]:
        """The means of the floating-point buffers."""
        # A copy is averaged, because nothing may be written before the vote.
        means = []
        for same in by_dtype(self.members.float_buffers).values():
            view = FlatView(same)
            weighed = weigh_(view.copied(), averaging)
            Pipeline([exact_sum(weighed, self._context.communicators.route)]).run()
            means.append((view, weighed))
        return means

    def _copied(self) -> list[tuple[FlatView, Tensor]]:
        """The other buffers of the first group."""
        copies, across = [], self._context.communicators.across
        for same in by_dtype(self.members.other_buffers).values():
            view = FlatView(same)
            values = view.copied()
            # As bytes, because gloo and NCCL do not support every dtype.
            across.broadcast_(values.view(torch.uint8), "buffers").wait()
            copies.append((view, values))
        return copies


def make_block(members: Members, context: BlockContext) -> ModelBlock:
    """Create the block of an optimizer, which groups that come and go commit."""
    if context.membership is None:
        return ModelBlock(members, context)
    return CommittedBlock(members, context)
