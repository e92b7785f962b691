"""Block synchronisation of the tensors of one optimizer, fragment by fragment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import BlockReport, Norms
from lightning_hier.comm.blocks.fragment import Fragment
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.schedule import DueFragments
from lightning_hier.comm.blocks.trained import Members, divide_parameters
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.stages import Pipeline


class ModelBlock:
    """Global model of one optimizer's tensors, in fragments.

    Every rank of a group must hold all parameters. Unless stated otherwise, methods are collectives
    of the world: every rank must call them at the same step.

    Args:
        members: tensors of the block. Their current values, equal on all ranks, are the start
            model.
        context: optimizer of these tensors, settings and channels.

    Attributes:
        members: see above.
        stepping: creates the context of each step of the optimizer. Does not communicate.

    """

    def __init__(self, members: Members, context: BlockContext) -> None:
        self.members = members
        self._context = context
        self.stepping = context.config.stepping(context.optimizer, context.communicators.models)
        parts = divide_parameters(members.parameters, context.config.fragments)
        divided = [Members(part) for part in parts]
        self._buffers: list[Fragment] = []
        if not context.delayed:
            # Buffers are in the last fragment, which is synchronised at the end of the block.
            divided[-1] = replace(members, parameters=parts[-1])
        else:
            # Buffers are averaged without delay, when the last fragment is sent.
            self._buffers = [Fragment(replace(members, parameters=[]), context)]
        self._fragments = [Fragment(part, context, delayed=context.delayed) for part in divided]
        self._all = [*self._fragments, *self._buffers]
        self._release_buffers()  # the start model was read through them
        self._groups = len(context.optimizer.param_groups)

    @property
    def lacks_groups(self) -> bool:
        """Whether the optimizer has parameter groups since, whose state is not averaged."""
        return len(self._context.optimizer.param_groups) != self._groups

    @property
    def carried(self) -> list[Tensor]:
        """State of the local optimizer that is averaged with the model."""
        return [tensor for fragment in self._all for tensor in fragment.local_state.carried]

    def count_step(self, samples: float = 0.0) -> None:
        """Count a step of the optimizer, and its samples on this rank. Does not communicate."""
        for fragment in self._all:
            fragment.steps += 1
            fragment.samples += samples

    def read(self, fragment: int | None = None) -> ModelHealth:
        """Copy this rank's shard of a fragment, or of all, into the transfer buffers.

        A collective of the group. All ranks exchange their health before one of the next methods.

        Args:
            fragment: number of the fragment that is sent. None: all fragments.

        Returns:
            The health of what was read.

        """
        health = ModelHealth()
        sent = self._all
        if fragment is not None:
            sent = [self._fragments[fragment], *self._buffers_with(fragment)]
        for part in sent:
            health += part.read()
        return health

    def synchronise(
        self, due: DueFragments, averaging: Averaging | None, *, delay: int = 0
    ) -> BlockReport | None:
        """Apply and send the fragments that are due, in place.

        Args:
            due: fragments that are due.
            averaging: how the models are averaged, after :meth:`read` of ``due.sends``;
                None if nothing is sent.
            delay: steps until the fragment that is sent is applied.

        Returns:
            Norms of the mean that was applied, or None.

        """
        norms: Norms | None
        if not self._context.delayed:
            assert due.sends is not None and averaging is not None
            norms = Norms(averaging.mean_squares)
            self._fragments[due.sends].synchronise(averaging.of(0), norms)
        else:
            norms = self._apply_and_send(due, averaging, delay)
        self._release_buffers()
        return None if norms is None else BlockReport.of(norms, self._context.communicators)

    def commit(
        self, fragment: int, agree: Callable[[ModelHealth], Averaging], *, name: str
    ) -> BlockReport | None:
        """Synchronise a fragment with the groups that are present, where groups come and go.

        :meth:`begin_commit` may have sent it before. Nothing is written into the tensors before all
        of them have voted that it counts. If a group is lost before, the others undo the exchange
        and repeat it without the group. If an error is raised, the state is that before it was
        sent. A collective of this rank's group.

        Args:
            fragment: number of the fragment.
            agree: agrees on how the models are averaged, for every attempt, from the health of what
                was read.
            name: name of what is synchronised, the same in all groups.

        Returns:
            Norms of the mean, or None if the fragment has no parameters.

        Raises:
            NonFiniteModelError: on every rank of this group, if its model is not finite.

        """
        part, buffers = self._fragments[fragment], self._buffers_with(fragment)
        membership = self._context.membership
        assert membership is not None, "groups come and go"

        def complete() -> None:
            part.complete()
            for own in buffers:
                own.exchange(agree, delay=1)
                own.complete()

        def undo() -> None:
            for own in (part, *buffers):
                own.undo()

        self._check_alone([*buffers] if part.has_update else [part, *buffers], agree)
        try:
            membership.synchronise(name, lambda: part.exchange(agree, delay=1), complete, undo)
        except BaseException:
            undo()  # a callback may save a checkpoint of this run
            raise
        norms = part.commit()
        for own in buffers:
            own.commit()
        self._release_buffers()
        return None if norms is None else BlockReport.of(norms, self._context.communicators)

    def begin_commit(
        self, fragment: int, agree: Callable[[ModelHealth], Averaging], *, name: str, delay: int
    ) -> None:
        """Send a fragment, ``delay`` steps before :meth:`commit`. A collective of the group.

        Arguments and errors are those of :meth:`commit`.
        """
        part, membership = self._fragments[fragment], self._context.membership
        assert membership is not None, "groups come and go"
        self._check_alone([part], agree)
        membership.begin(name, lambda: part.exchange(agree, delay=delay))
        self._release_buffers()

    @staticmethod
    def _check_alone(parts: Iterable[Fragment], agree: Callable[[ModelHealth], Averaging]) -> None:
        # In this group alone: one whose model is not finite ends before the others count on it.
        for part in parts:
            agree(part.read())

    def unsent(self, fragment: int) -> bool:
        """Whether a fragment has steps that no mean contains. Does not communicate."""
        part = self._fragments[fragment]
        return part.steps > 0 or part.has_update

    def forget_errors(self) -> None:
        """Set the error feedback to zero. Does not communicate."""
        for fragment in self._all:
            fragment.forget_errors()

    def _release_buffers(self) -> None:
        for fragment in self._all:
            for bucket in fragment.buckets:
                bucket.shard.release()

    def _apply_and_send(
        self, due: DueFragments, averaging: Averaging | None, delay: int
    ) -> Norms | None:
        norms = None if due.applies is None else self._fragments[due.applies].apply()
        if due.sends is None or averaging is None:
            return norms
        fragment, applied = self._fragments[due.sends], due.sends == due.applies
        # Blocks have become longer since the last send, and one update at a time is in flight.
        if fragment.has_update:
            norms, applied = fragment.apply(), True
        if applied:
            fragment.read()  # the local update is what the merge has kept
        sent = Norms(averaging.mean_squares)
        for place, buffers in enumerate(self._buffers_with(due.sends), start=1):
            if buffers.members.float_buffers:
                self._context.communicators.route.in_flight.finish()  # the same process groups
            buffers.synchronise(averaging.of(place), sent)
        fragment.send(averaging.of(0), sent, delay=delay)
        return norms

    def _buffers_with(self, fragment: int) -> Sequence[Fragment]:
        """The buffers, if they are averaged when this fragment is sent."""
        return self._buffers if fragment == len(self._fragments) - 1 else ()

    def write_global_model(self, averaging: Averaging) -> None:
        """Write the global model W into the tensors, in place. The outer step is unchanged.

        W is the model that would result if all blocks ended now. Where groups come and go, others
        take no part: it is that of the last synchronisations, with the buffers of this group. A
        collective of the world, after all work in flight.

        Args:
            averaging: how the models are averaged, after :meth:`read` of all fragments.

        """
        alone = self._context.membership is not None
        if not alone:
            self._context.communicators.route.in_flight.finish()
        # Without steps since the last synchronisation, a mean would apply momentum once more.
        Pipeline(
            chunk
            for place, part in enumerate(self._all)
            for chunk in part.write_global(
                None if alone else averaging.of(place), pending=part.has_pending
            )
        ).run()
        for fragment in self._all:
            fragment.finish_global()
        self._release_buffers()

    @torch.no_grad()
    def regrown(self, members: Members) -> ModelBlock:
        """The same block with more members.

        Current values of new parameters are their global ones. Without new members or parameter
        groups, it is this block. Error feedback is discarded. A collective of the group, after all
        work in flight. Where groups come and go, what they have not voted on is undone, and sent
        again at the vote.

        Raises:
            ValueError: there are new parameters and several fragments.

        """
        if _same(members.tensors, self.members.tensors) and not self.lacks_groups:
            return self
        context = self._context
        # Fragments would be divided anew by bytes, and parameters would move between fragments that
        # are at different steps.
        unfrozen = not _same(members.parameters, self.members.parameters)
        if context.config.fragments > 1 and unfrozen:
            raise ValueError(
                f"fragments={context.config.fragments} can't be combined with unfreezing "
                "parameters during training: make them trainable from the start, or pass "
                "fragments=1"
            )
        # The new fragments could not undo an exchange on which the groups have not voted.
        if context.membership is not None and any(part.has_update for part in self._all):
            context.membership.fail(PeerError("tensors have joined the model while it was sent"))
        for part in self._all:
            part.undo()
        context.communicators.route.in_flight.finish()
        block = type(self)(members, context)  # W is the current model until it is loaded
        for fragment, older in zip(block._all, self._all, strict=True):
            fragment.load_grown(older)
        self._release_buffers()
        block._release_buffers()
        return block

    def state(self) -> list[dict[str, Any]]:
        """This rank's shard of each fragment, without copying tensors.

        A collective of the world if updates are in flight, which it finishes.
        """
        return [fragment.state() for fragment in self._all]

    def outer_states(self) -> Iterator[tuple[Sequence[Parameter], int, dict[str, Any]]]:
        """The part of :meth:`state` from which runs with other shards or settings start.

        A collective as :meth:`state` is.

        Yields:
            Parameters of one fragment and kind, the first of their elements that this rank holds,
            and the state of their outer step, whose vectors have a value for each of these
            elements, and the counts of the local optimizer's state of each parameter. With
            ``overlap``, ``"in_flight"`` is zero without an update, for which ``"has_update"`` is
            False, also of a single model, which has none.
            ``"at"`` has the numbers of fragment and bucket in :meth:`state`.

        """
        for number, (fragment, own) in enumerate(zip(self._all, self.state(), strict=True)):
            by_kind = self._context.placement.by_kind(fragment.members.parameters)
            counts = fragment.counts()
            pairs = zip(fragment.buckets, own["buckets"], strict=True)
            for place, (bucket, saved) in enumerate(pairs):
                if bucket.kind not in by_kind:
                    continue  # others contain only buffers or optimizer state
                names = [*bucket.outer.settings(), *bucket.outer.vectors, "in_flight"]
                state = {name: saved[name] for name in names}
                state |= {"pending": own["pending"], "has_update": state["in_flight"] is not None}
                state["counts"] = [counts.get(parameter) for parameter in by_kind[bucket.kind]]
                state["at"] = [number, place]
                if not state["has_update"] and self._context.config.overlap:
                    state["in_flight"] = torch.zeros_like(state["global_model"])
                yield by_kind[bucket.kind], bucket.shard.start, state

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue in the middle of a block of the same groups. Does not communicate."""
        for fragment, state in zip(self._all, states, strict=True):
            fragment.load(state)

    @torch.no_grad()
    def load_elsewhere(self, states: Mapping[Parameter, Mapping[str, Any]]) -> None:
        """Start a block from a run of other groups or settings. A collective of the group.

        The module must contain the global model of that run.

        Args:
            states: :meth:`outer_states` of that run for each parameter, with vectors of all
                elements that this rank holds. Its tensors may be overwritten. Parameters that are
                not in it start with their current values.

        """
        counts = {p: state["counts"] for p, state in states.items() if state["counts"] is not None}
        for fragment in self._all:
            by_kind = self._context.placement.by_kind(fragment.members.parameters)
            for bucket in fragment.buckets:
                own = [p for p in by_kind.get(bucket.kind, []) if p in states]
                bucket.load_elsewhere({parameter: states[parameter] for parameter in own})
            fragment.local_state.set_counts(counts, begins=True)
        self._release_buffers()


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return [*map(id, tensors)] == [*map(id, others)]
