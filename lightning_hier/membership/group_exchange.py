"""Exchanges between the groups that are present, and their votes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import AcrossRoute, Communicators
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.membership.connections import (
    GroupLostError,
    LossOfGroups,
    open_store,
    process_group,
    wait_for_all,
)
from lightning_hier.membership.lighthouse import Entry, Phase, Quorum
from lightning_hier.membership.quorums import Quorums
from lightning_hier.membership.rules import (
    Progress,
    members_of,
    named_groups,
    out_of_order,
    servers_of,
)

MOST_ATTEMPTS = 10
"""Attempts of one synchronisation, or to join, of groups that may not reach each other."""


@dataclass(frozen=True)
class Attempt:
    """An exchange with the groups of a quorum.

    Attributes:
        quorum: the quorum.
        members: groups that exchange.
        failed: why it has failed in this group, or "".

    """

    quorum: Quorum
    members: Sequence[Entry]
    failed: str = ""


class GroupExchange:
    """Synchronisations of this group with those that are present.

    A synchronisation has two phases. The quorum of the phase ``"block"`` lists the groups that take
    part, and these exchange their updates. The quorum of the phase ``"vote"`` shows whether the
    exchange has succeeded everywhere. It counts in all groups or in none. If it does not count, the
    groups that are left repeat it. No group writes a result before the vote. If groups joined, one
    of the phase ``"serve"`` follows at the end of the batch, after all its synchronisations.

    Unless stated otherwise, methods are collectives of the group: all its ranks must call them.

    Args:
        quorums: quorums in which this group takes part.
        own: channels of this rank. Its ``across`` and ``route`` become those of the groups. Its
            ``layout`` and ``world`` have all groups that are present while they synchronise, and
            otherwise this group only.

    Attributes:
        settings: settings of the user.
        quorums: see above.
        joined: whether groups have waited for a state at the last synchronisation.
        present: numbers of the groups that have taken part in it.

    """

    def __init__(self, quorums: Quorums, own: Communicators) -> None:
        self.quorums = quorums
        self.settings = quorums.settings
        self._own = own
        loss = LossOfGroups()
        # New channels: with those of the job, a failure would name ranks of this job only.
        self.across = Channel(own.across.group, "across", own.traffic, loss)
        self._world = Channel(own.world.group, "across", own.traffic, loss)
        self._layout = own.layout
        # Process groups of this job alone, which both use until the groups are connected.
        self._alone = own.across.group, own.world.group
        # Blocks refer to both, so they are replaced before there are blocks. Later, their contents
        # change with the groups that are present.
        own.across, own.route = self.across, AcrossRoute(self.across, None, 1)
        own.most_groups = self.settings.groups
        self._connected: Sequence[str] = ()
        self._together: Quorum | None = None
        self._positions: dict[int, Sequence[int]] = {}
        self.present: Sequence[int] = ()
        self.joined = False
        self._begun: Attempt | None = None

    @property
    def device(self) -> torch.device:
        """Device of collectives."""
        return self._own.device

    @property
    def commits(self) -> int:
        """Number of synchronisations of the run so far."""
        return self.quorums.progress.commits

    def state(self) -> dict[str, Any]:
        """State for a checkpoint. Does not communicate."""
        positions = {str(group): list(place) for group, place in self._positions.items()}
        return {**asdict(self.quorums.progress), "positions": positions}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint. Does not communicate."""
        values = dict(state)
        self._positions = {int(group): place for group, place in values.pop("positions").items()}
        self.quorums.progress = Progress(**values)

    def position_of(self, group: int) -> Sequence[int]:
        """Epoch and used batches of a group at its last synchronisation. Does not communicate."""
        return self._positions.get(group, (0, 0))

    def start(self, module: Module) -> bool:
        """Wait for the other groups at the start of a run. Those with other modules are refused.

        Returns:
            Whether this group starts with them. Otherwise it must join those that train.

        """
        parameters, buffers = [*module.parameters()], [*module.buffers()]
        size = f"{len(parameters + buffers)} tensors, {sum(p.numel() for p in parameters)} elements"
        self.quorums.required["parameters"] = size
        self._together = self.quorums.start()
        return self._together is not None

    def share_initial_model(self, module: Module) -> None:
        """Give all groups that start together the model of the first one, in place."""
        if not self.quorums.progress.last_commit:  # otherwise a checkpoint had the model
            # Nothing to undo: the next attempt overwrites the model again.
            tensors, nothing = [*module.parameters(), *module.buffers()], lambda: None
            share = partial(broadcast_tensors_, tensors, self.across, "initial_model")
            self._exchange("init", share, nothing, nothing, quorum=self._together)

    def begin(self, name: str, attempt: Callable[[], None]) -> None:
        """Begin the next :meth:`synchronise`, whose arguments and errors these are.

        If it fails, the groups find out when they vote.
        """
        self._begun = self._attempted("block", attempt, name)

    def fail(self, error: PeerError) -> None:
        """Give up what has begun. Does not communicate."""
        assert self._begun is not None, "an exchange is in flight"
        self._begun = replace(self._begun, failed=str(error))
        self._disconnect()  # other ranks that still wait for this one then fail at once

    def synchronise(
        self,
        name: str,
        attempt: Callable[[], None],
        complete: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """See :class:`Membership`. Afterwards the result counts everywhere.

        ``attempt``, which is not called if it has begun, and ``complete`` are called while
        :class:`Communicators` has the channels of the groups that are present.

        Raises:
            PeerError: too few groups are there within the limit, or this one has missed a
                synchronisation and must restart.

        """
        self._exchange("block", attempt, complete, undo, part=name)
        self.quorums.progress.commits += 1

    def joiners(self) -> tuple[str, Sequence[Entry]]:
        """Groups to which this one must send its state, and the identifier of what is sent.

        All groups of the last synchronisation must call it, if groups have ``joined``.
        """
        self.joined = False
        quorum = self.quorums.serving()
        servers = [entry.group for entry in servers_of(quorum)]
        if self.settings.group not in servers:  # it stood still, and the others have gone on
            return quorum.identifier, ()
        # Those that count it as their source, see Quorums.join.
        place = servers.index(self.settings.group)
        return quorum.identifier, quorum.within("join")[place :: len(servers)]

    def _exchange(
        self,
        phase: Phase,
        attempt: Callable[[], None],
        complete: Callable[[], None],
        undo: Callable[[], None],
        quorum: Quorum | None = None,
        part: str = "",
    ) -> None:
        progress = self.quorums.progress
        for attempts in count(1):
            tried = self._begun or self._attempted(phase, attempt, part, quorum)
            self._begun = None
            current, members = tried.quorum, tried.members
            further = partial(self._with_channels, complete)
            failed = self._tried(tried, further).failed
            # A group that has failed votes as well: without its vote, the others would wait.
            if self.quorums.vote(current, members, ok=not failed):
                break
            undo()
            # In all groups, so that they connect anew together.
            self._disconnect()
            why = failed or "it failed in another group"
            if attempts == MOST_ATTEMPTS:
                raise PeerError(f"the groups have tried {attempts} times to synchronise: {why}")
            self.quorums.log(f"The groups repeat a synchronisation: {why}.")
            quorum = None  # the quorum of the start serves for the first attempt only
        if failed:  # this group was late, and has no complete result
            raise PeerError(
                f"group {self.settings.group} must restart: a synchronisation has failed here and "
                f"succeeded in the other groups ({failed}). It then continues from their model"
            )
        # By the clock of the Lighthouse, so that all groups of a run have the same time.
        progress.begun = progress.begun or current.time
        progress.last_commit = current.identifier
        self._positions |= {entry.group: entry.position for entry in members}
        groups = [entry.group for entry in members]
        self.joined = phase == "block" and bool(current.within("join"))
        self._report(groups)

    def _attempted(
        self,
        phase: Phase,
        attempt: Callable[[], None],
        part: str = "",
        quorum: Quorum | None = None,
    ) -> Attempt:
        """Connect the groups that are present, and start an exchange."""
        current = quorum or self.quorums.gathered(phase, part)
        members = members_of(current, self.quorums.progress.last_commit)
        if self.settings.group not in [entry.group for entry in members]:
            raise PeerError(out_of_order(self.settings.group, part, members))

        def connect_and_attempt() -> None:
            self._connect(current.identifier, members)
            self._with_channels(attempt)

        return self._tried(Attempt(current, members), connect_and_attempt)

    def _connect(self, identifier: str, members: Sequence[Entry]) -> None:
        """Connect the ranks of these groups, unless they are. Every rank of them must call it.

        Raises:
            GroupLostError: another rank did not connect.

        """
        # A group that was started again has a store at another address.
        addresses = [entry.address for entry in members]
        if self._connected == addresses:
            return
        self._disconnect()
        groups = [entry.group for entry in members]
        position, size = self._own.group.position, self._own.group.size
        number, count = groups.index(self.settings.group), len(groups)
        self._layout = RankLayout((size, count))
        timeout = self.settings.exchange_timeout
        with LossOfGroups().explaining((), f"connecting the groups {groups}"):
            # The jobs of the groups share no store, so all ranks use the store of the first group.
            store = open_store(addresses[0], timeout)
            ends = store, self.quorums.host, timeout
            rank, total = number * size + position, count * size
            wait_for_all(store, identifier, rank, total, addresses, timeout)
            across = process_group(f"{identifier}/across/{position}", number, count, *ends)
            # At once, so that _disconnect() aborts it if the next one fails.
            self.across.use(across, range(position, total, size))
            world = process_group(f"{identifier}/world", rank, total, *ends)
            self._world.use(world, range(total))
        self._connected = addresses

    def _tried(self, tried: Attempt, further: Callable[[], None]) -> Attempt:
        """Continue an attempt, unless it has failed on this rank."""
        failed = tried.failed
        try:
            if not failed:
                further()
        except GroupLostError as error:
            failed = str(error)
        # The group votes as one, so a failure on any of its ranks is one of all.
        every = gather_json(failed, self._own.device, place="an exchange with other groups")
        failures = [text for text in every if text]
        if failures:
            # Other groups that still wait for this one then fail at once.
            self._disconnect()
        return replace(tried, failed=failures[0] if failures else "")

    def _disconnect(self) -> None:
        """Close the connections, so that ranks that still wait for this one fail."""
        self._connected = ()
        for channel, alone in zip((self.across, self._world), self._alone, strict=True):
            if channel.group is not alone:
                with suppress(RuntimeError):
                    channel.group.abort()
                channel.use(alone, dist.get_process_group_ranks(alone))
        self._own.route.in_flight.abandon()

    def _with_channels(self, function: Callable[[], None]) -> None:
        """Call a function while the channels of this rank are those of the groups."""
        own = self._own
        # `across` and the route have the channel of the connections all the time.
        before = own.layout, own.world
        own.layout, own.world = self._layout, self._world
        own.route.inter_host_ranks = self._layout.sizes[1]
        try:
            function()
        finally:
            own.layout, own.world = before

    def _report(self, groups: Sequence[int]) -> None:
        """Log a change of the groups that take part."""
        if groups != self.present:
            done = counted(self.commits, "synchronisation")
            after = f"after {done}" if self.commits else "at the start"
            left = [group for group in self.present if group not in groups]
            self.quorums.log(
                f"{len(groups)} of {counted(self.settings.groups, 'group')} take part {after}: "
                f"{', '.join(map(str, groups))}{f'; without {named_groups(left)}' * bool(left)}."
            )
        self.present = groups

    def close(self) -> None:
        """Leave the groups. Does not communicate."""
        self._disconnect()
        self.quorums.close()
