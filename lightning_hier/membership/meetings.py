"""Meetings of the groups that are present: who takes part, and whether a synchronisation counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from lightning_hier.comm.agreement import broadcast_json, gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.connections import (
    GroupConnections,
    GroupLostError,
    open_store,
    serve_store,
)
from lightning_hier.membership.lighthouse import (
    Entry,
    Lighthouse,
    Phase,
    Quorum,
    newest,
    own_address,
)
from lightning_hier.membership.rules import check_start, counts, members_of, missing_groups
from lightning_hier.membership.torchft import TorchFT

# Seconds between two quorums of a group that waits for others.
_POLL_S = 0.2


class Meetings:
    """Synchronisations of this group with those that are present.

    A synchronisation has two phases. In the quorum of the phase ``"block"``, all groups learn who
    takes part, and exchange their updates. In that of the phase ``"vote"``, they learn whether it
    has succeeded everywhere: it counts in all groups or in none, and then they repeat it with those
    that are left. No group writes a result before.

    Unless stated otherwise, methods are collectives of the group: all its ranks must call them.
    Rank 0 of the group speaks with the Lighthouse.

    Args:
        settings: settings of the user.
        own: channels of this rank in its group, which take the place of those between groups
            outside of meetings.
        limit: longest wait for other groups.
        say: logs a line, on one rank.
        position: returns epoch and used batches of this group.
        required: settings that must be equal in all groups.

    Attributes:
        joiners: groups that wait for the state of this one since the last synchronisation.

    """

    def __init__(
        self,
        settings: TorchFT,
        own: Communicators,
        *,
        limit: timedelta,
        say: Callable[[str], None],
        position: Callable[[], tuple[int, int]],
        required: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self._own = own
        self._say = say
        self._position = position
        self._required = dict(required)
        # Other ranks wait for rank 0 in a collective with the full limit.
        self._limit = 0.9 * limit
        self._timeout = timedelta(seconds=settings.join_timeout_s)
        self.host = own_address(settings.lighthouse)
        self.store: dist.distributed_c10d.Store | None = None
        self._lighthouse: Lighthouse | None = None
        self._address = ""
        self._connections = GroupConnections.unconnected(own)
        self._together: Quorum | None = None
        self._connected: Sequence[str] = ()
        self._present: Sequence[int] = ()
        self._begun, self._commits, self._lineage = 0.0, 0, ""
        self._positions: dict[int, Sequence[int]] = {}
        self.joiners: Sequence[Entry] = ()
        self.identifier = ""
        self._on_first(self._open)

    def _open(self) -> None:
        self.store = store = serve_store(self.host)
        self._address = f"{self.host}:{store.port}"
        settings = self.settings
        self._lighthouse = Lighthouse(
            settings.lighthouse, settings.group, self._address, self._limit
        )

    @property
    def across(self) -> Channel:
        """Ranks at this rank's position in the groups that are present."""
        return self._connections.across

    @property
    def models(self) -> int:
        """Largest number of groups."""
        return self.settings.groups

    def state(self) -> dict[str, Any]:
        """State for a checkpoint. Does not communicate."""
        positions = {str(group): list(place) for group, place in self._positions.items()}
        return {
            "begun": self._begun,
            "commits": self._commits,
            "lineage": self._lineage,
            "positions": positions,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint. Does not communicate."""
        self._begun, self._commits = state["begun"], state["commits"]
        self._lineage = state["lineage"]
        self._positions = {int(group): place for group, place in state["positions"].items()}

    def place_of(self, group: int) -> Sequence[int]:
        """Epoch and used batches of a group at its last synchronisation. Does not communicate."""
        return self._positions.get(group, (0, 0))

    def start(self) -> bool:
        """Wait for the other groups at the start of a run.

        Returns:
            Whether this group must :meth:`join` those that train, or that have a newer model.

        """
        found = self._on_first(self._start)
        self._together = None if found is None else Quorum.of(found)
        return found is None

    def _start(self) -> dict[str, Any] | None:
        """The quorum of the groups that start together, or None if this one must join others."""
        until = monotonic() + self.settings.join_timeout_s
        while True:
            waited = monotonic() > until
            quorum = self._quorum("start", ok=waited)
            check_start(self._entry("start"), quorum)
            if quorum.within("block", "vote", "init"):
                return None
            present = len(quorum.entries)
            # All groups of a quorum decide the same.
            enough = any(e.ok for e in quorum.entries) and present >= self.settings.min_groups
            if enough or present == self.settings.groups:
                best = newest(quorum.entries)
                is_newest = best is None or best.lineage == self._lineage
                return asdict(quorum) if is_newest else None
            sleep(_POLL_S)

    def share_initial_model(self, broadcast: Callable[[Channel], None]) -> None:
        """Give all groups that start together the same model.

        Args:
            broadcast: copies the model of the first rank of a channel to the others, in place.

        """
        if not self._lineage:  # otherwise it is that of a checkpoint
            self._exchange("init", lambda: broadcast(self.across), lambda: None, self._together)

    def synchronise(self, attempt: Callable[[], None], undo: Callable[[], None]) -> None:
        """Synchronise with the groups that are present. Afterwards the result counts everywhere.

        Args:
            attempt: exchanges with the groups, while :class:`Communicators` has their channels.
            undo: restores the state before ``attempt``, which has failed here or elsewhere.

        Raises:
            PeerError: too few groups are there within the limit, or this one has missed a
                synchronisation and must restart.

        """
        self._exchange("block", attempt, undo)
        self._commits += 1

    def _exchange(
        self,
        phase: Phase,
        attempt: Callable[[], None],
        undo: Callable[[], None],
        quorum: Quorum | None = None,
    ) -> None:
        while True:
            if quorum is None:
                quorum = Quorum.of(self._on_first(lambda: asdict(self._gathered(phase))))
            members = members_of(quorum, self._lineage)
            failed = self._attempted(quorum, members, attempt)
            if self._on_first(partial(self._voted, quorum, members, failed)):
                break
            self._say(f"the groups repeat a synchronisation: {failed or 'it failed elsewhere'}.")
            undo()
            quorum = None
        self._begun = self._begun or quorum.time
        self._lineage = quorum.identifier
        self._positions |= {entry.group: (entry.epoch, entry.batches) for entry in members}
        joiners, own = quorum.within("join"), self.settings.group
        number = [entry.group for entry in members].index(own)
        self.identifier, self.joiners = quorum.identifier, joiners[number :: len(members)]
        self._report([entry.group for entry in members])

    def _gathered(self, phase: Phase) -> Quorum:
        """The quorum of the groups that are in this phase."""
        until = monotonic() + self._limit.total_seconds()
        while True:
            quorum = self._quorum(phase)
            best = newest(quorum.within("block"))
            if best is not None and best.lineage != self._lineage:
                raise PeerError(
                    f"group {self.settings.group} has missed {best.commits - self._commits} "
                    "synchronisations of the others, because it was stopped or cut off: restart "
                    "it, and it continues from their model"
                )
            # The outcome of a vote is not known here yet.
            undecided = any(e.commits >= self._commits for e in quorum.within("vote"))
            if not undecided and len(quorum.entries) >= self.settings.min_groups:
                return quorum
            if monotonic() > until:
                raise PeerError(missing_groups(self.settings, quorum, self._limit))
            sleep(_POLL_S)

    def _attempted(
        self, quorum: Quorum, members: Sequence[Entry], attempt: Callable[[], None]
    ) -> str:
        """Connect the groups and exchange. Returns why it failed on a rank of this group, or ""."""
        failed, addresses = "", [entry.address for entry in members]
        try:
            if self._connected != addresses:
                self._connections.close(self._own)
                self._connections.connect(
                    quorum.identifier,
                    members,
                    self.settings.group,
                    self._own,
                    host=self.host,
                    timeout=self._timeout,
                )
            with self._in_meeting(len(members)):
                attempt()
        except GroupLostError as error:
            failed = str(error)
        found = [text for text in gather_json(failed, self._own.device) if text]
        self._connected = [] if found else addresses
        if found:
            # Other groups that still wait for this one then fail at once.
            self._connections.close(self._own)
        return found[0] if found else ""

    @contextmanager
    def _in_meeting(self, groups: int) -> Iterator[None]:
        own = self._own
        before = own.layout, own.world
        own.layout, own.world = self._connections.layout, self._connections.world
        own.route.inter_host_ranks = groups
        try:
            yield
        finally:
            own.layout, own.world = before

    def _voted(self, quorum: Quorum, members: Sequence[Entry], failed: str) -> bool:
        """Whether the synchronisation counts."""
        vote = self._quorum("vote", meeting=quorum.identifier, ok=not failed)
        return counts(vote, quorum, members, self.settings.group)

    def join(self) -> tuple[str, str]:
        """Wait until a group has its state ready for this one.

        Returns:
            Identifier of the synchronisation after which it has it, and address of its store.

        Raises:
            PeerError: no group has trained within the limit.

        """
        identifier, address = self._on_first(self._join)
        return identifier, address

    def _join(self) -> list[str]:
        until = monotonic() + self._limit.total_seconds()
        while monotonic() < until:
            quorum = self._quorum("join")
            best = newest(quorum.within("block"))
            if best is None:
                sleep(_POLL_S)
                continue
            members = members_of(quorum, best.lineage)
            joiners = [entry.group for entry in quorum.within("join")]
            source = members[joiners.index(self.settings.group) % len(members)]
            # Taking part in the vote too: the Lighthouse waits for all groups of the last quorum.
            vote = self._quorum("join")
            if counts(vote, quorum, members, self.settings.group) and self._is_served(
                quorum.identifier, source.address
            ):
                return [quorum.identifier, source.address]
        raise PeerError(
            f"group {self.settings.group} has waited {self._limit.total_seconds():.0f} s for the "
            "state of a group that trains, but none has synchronised. Restart this group, and it "
            "starts from its own checkpoint if no other group is there"
        )

    def _is_served(self, identifier: str, address: str) -> bool:
        """Whether the state after a synchronisation can be fetched. Waits until it is ready."""
        try:
            return bool(open_store(address, self._limit).get(f"{identifier}/ready"))
        except RuntimeError:  # the group was lost
            return False

    def tell_ready(self) -> None:
        """Tell joining groups that their state can be fetched. Does not wait; rank 0 only."""
        assert self.store is not None, "only rank 0 has a store"
        self.store.set(f"{self.identifier}/ready", "yes")

    def _quorum(self, phase: Phase, **values: Any) -> Quorum:
        assert self._lighthouse is not None, "only rank 0 speaks with the Lighthouse"
        return self._lighthouse.meet(self._entry(phase, **values))

    def _entry(self, phase: Phase, **values: Any) -> Entry:
        epoch, batches = self._position()
        return Entry(
            group=self.settings.group,
            phase=phase,
            ranks=self._own.group.size,
            address=self._address,
            begun=self._begun,
            commits=self._commits,
            lineage=self._lineage,
            epoch=epoch,
            batches=batches,
            settings=self._required,
            **values,
        )

    def _report(self, groups: Sequence[int]) -> None:
        """Log a change of the groups that take part."""
        if groups != self._present:
            after = f"after {self._commits} synchronisations" if self._commits else "at the start"
            self._say(
                f"{len(groups)} of {self.settings.groups} groups take part {after}: "
                f"{', '.join(map(str, groups))}."
            )
        self._present = groups

    def _on_first(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0. Return its JSON value, or raise its error, on all ranks."""
        found: dict[str, Any] = {}
        if self._own.world.position == 0:
            try:
                found["value"] = function()
            except (PeerError, ValueError) as error:
                found = {"error": str(error), "is_peer": isinstance(error, PeerError)}
        found = broadcast_json(found, 0, self._own.device)
        if "error" in found:
            raise (PeerError if found["is_peer"] else ValueError)(found["error"])
        return found["value"]

    def close(self) -> None:
        """Leave the meetings. Does not communicate."""
        self._connections.close(self._own)
        if self._lighthouse is not None:
            self._lighthouse.close()
