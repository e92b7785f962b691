"""Quorums of one group: rank 0 requests them from the Lighthouse, and all ranks get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Any

from torch.distributed.distributed_c10d import Store

from lightning_hier.comm.agreement import broadcast_json, raise_everywhere
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.connections import (
    open_store,
    own_address,
    serve_store,
    without_ended,
)
from lightning_hier.membership.lighthouse import Entry, Lighthouse, Phase, Quorum, newest
from lightning_hier.membership.rules import (
    Progress,
    absent,
    check_start,
    counts,
    different_settings,
    missed,
    missing_groups,
    named_groups,
    servers_of,
    twice_in,
    two_jobs,
)
from lightning_hier.membership.torchft import TorchFT

# Seconds between two quorums of a group that waits for others.
_POLL_S = 0.2


class Quorums:
    """Quorums in which this group takes part.

    Methods are collectives of the group: all its ranks must call them, unless stated otherwise.
    An error of rank 0 is raised on all ranks.

    Args:
        settings: settings of the user.
        own: channels of this rank in its group.
        limit: longest wait of the ranks of this group for each other. They wait in a collective
            while rank 0 waits for other groups: a third of it for an answer of the Lighthouse, and
            at most two thirds in total.
        log: logs a line, on one rank.
        position: returns epoch and used batches of this group.
        required: settings that must be equal in all groups.

    Attributes:
        settings, log: see above.
        progress: what the global model of this group contains.
        required: settings that must be equal in all groups, and the number of ranks.
        host: IP address of this rank, on the network of the Lighthouse.
        store: store of the group, on rank 0.

    """

    def __init__(
        self,
        settings: TorchFT,
        own: Communicators,
        *,
        limit: timedelta,
        log: Callable[[str], None],
        position: Callable[[], tuple[int, int]],
        required: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self._own = own
        # A wait for groups takes up to two of these thirds, so rank 0 gives up before its ranks do.
        self._limit = limit / 3
        self.log = log
        self._logged = ""
        self._position = position
        self.required = {"ranks": own.group.size, **required}
        self.progress = Progress()
        with raise_everywhere(own.device, place="the search for the Lighthouse"):
            self.host = own_address(settings.lighthouse)
        self.store: Store | None = None
        self._lighthouse: Lighthouse | None = None
        self._address = ""
        self.on_first(self._open)

    def _open(self) -> None:
        self.store = store = serve_store(self.host)
        self._address = f"{self.host}:{store.port}"
        settings = self.settings
        self._lighthouse = Lighthouse(
            settings.lighthouse, settings.group, self._address, self._limit, self.log
        )

    def start(self) -> Quorum | None:
        """Wait for the groups that start together.

        Returns:
            Their quorum, or None if this group must :meth:`join` others, which train already or
            have a newer model.

        Raises:
            ValueError: this group does not suit the others.

        """
        quorum = self.on_first(self._start)
        return None if quorum is None else Quorum.of(quorum)

    def _start(self) -> dict[str, Any] | None:
        progress, settings, begun = self.progress, self.settings, monotonic()
        while True:
            waited = monotonic() - begun
            quorum = self._request("start", waited=waited > settings.join_timeout_s)
            present, best = len(quorum.entries), newest(quorum.entries)
            is_newest = best is None or best.last_commit == progress.last_commit
            trains = bool(quorum.within("block", "vote", "serve", "init"))
            # A group whose model all must take does not join: those that train restart first.
            if trains and not (progress.last_commit and is_newest):
                return None
            # All start if one of them has waited long enough, because all must decide the same.
            enough = present >= settings.min_groups and any(e.waited for e in quorum.entries)
            if not trains and (present == settings.groups or enough):
                return asdict(quorum) if is_newest else None
            if waited > self._limit.total_seconds():
                raise PeerError(missing_groups(settings, quorum, self._limit))
            self._log_waiting(quorum, settings.join_timeout_s)
            sleep(_POLL_S)

    def _log_waiting(self, quorum: Quorum, seconds: float) -> None:
        """Log which groups this one waits for, once."""
        missing = absent(self.settings, quorum)
        text = f"Waiting up to {seconds:.0f} s for {named_groups(missing)}."
        if missing and text != self._logged:
            self._logged = text
            self.log(text)

    def gathered(self, phase: Phase, part: str = "") -> Quorum:
        """Wait for the quorum of the groups that exchange a part of the model.

        Raises:
            PeerError: too few groups came, or this one has missed synchronisations.

        """
        return Quorum.of(self.on_first(lambda: asdict(self._gathered(phase, part))))

    def _gathered(self, phase: Phase, part: str) -> Quorum:
        progress, settings = self.progress, self.settings
        until = monotonic() + self._limit.total_seconds()
        while True:
            quorum = self._request(phase, part=part)
            best = newest(quorum.within("block", "start", "join"))
            if best is not None and best.last_commit != progress.last_commit:
                raise PeerError(missed(settings.group, progress, best))
            # Groups in a vote may be about to commit this block. Only the next quorum shows it.
            undecided = any(e.commits >= progress.commits for e in quorum.within("vote", "serve"))
            if not undecided and len(quorum.entries) >= settings.min_groups:
                self._logged = ""
                self._log_refused(quorum)
                return quorum
            if monotonic() > until:
                raise PeerError(missing_groups(settings, quorum, self._limit))
            self._log_waiting(quorum, self._limit.total_seconds())
            sleep(_POLL_S)

    def _log_refused(self, quorum: Quorum) -> None:
        """Log the groups that have other settings. Their processes end with an error."""
        for entry in quorum.within("start", "join"):
            differ = different_settings(self._entry("block"), entry)
            if differ:
                self.log(f"Group {entry.group} was refused, because of {differ}.")

    def vote(self, quorum: Quorum, members: Sequence[Entry], *, ok: bool) -> bool:
        """Whether the synchronisation of ``members`` counts, for which this group votes."""
        return bool(self.on_first(partial(self._vote, quorum, members, ok)))

    def _vote(self, quorum: Quorum, members: Sequence[Entry], ok: bool) -> bool:
        vote = self._request("vote", votes_for=quorum.identifier if ok else "")
        return counts(vote, quorum, members)

    def join(self) -> tuple[str, str]:
        """Wait until a group has its state ready for this one.

        Returns:
            Identifier of the quorum in which it was offered, and address of its store.

        Raises:
            PeerError: no group has trained within the limit.

        """
        identifier, address = self.on_first(self._join)
        return identifier, address

    def _join(self) -> list[str]:
        group, begun, limit = self.settings.group, monotonic(), self._limit.total_seconds()
        # A third for the end of a block, and a third until the state is ready (docs/elastic.md).
        end, until = begun + limit, begun + 2 * limit
        while monotonic() < end:
            # In every quorum of those that train, because the Lighthouse waits for all of the last.
            quorum = self._request("join", until)
            if servers := servers_of(quorum):
                joiners = [entry.group for entry in quorum.within("join")]
                # The servers divide the joiners by the same rule, see GroupExchange.joiners.
                source = servers[joiners.index(group) % len(servers)]
                if self._is_ready(quorum.identifier, source.address, until):
                    return [quorum.identifier, source.address]
            elif quorum.within("block", "vote"):
                end = until  # they offer their state soon
            else:
                sleep(_POLL_S)
        raise PeerError(
            f"group {group} has waited {monotonic() - begun:.0f} s for the state of a group that "
            "trains, but none has synchronised and sent it. Restart this group, and it starts from "
            "its own checkpoint if no other group is there"
        )

    def serving(self) -> Quorum:
        """The quorum of the groups that send their state to those that join."""
        return Quorum.of(self.on_first(lambda: asdict(self._request("serve"))))

    def _is_ready(self, identifier: str, address: str, until: float) -> bool:
        """Whether a state that was offered can be fetched. Waits until it is ready."""
        left = timedelta(seconds=max(until - monotonic(), 0.001))  # a store waits for ever at 0
        try:
            store = open_store(address, min(self._limit, left))
            return bool(store.get(f"{identifier}/ready/{self.settings.group}"))
        except RuntimeError:  # the group was lost
            return False

    def mark_ready(self, identifier: str, group: int) -> None:
        """Tell a joining group that its state can be fetched. Does not wait; rank 0 only."""
        assert self.store is not None, "only rank 0 has a store"
        self.store.set(f"{identifier}/ready/{group}", "yes")

    def _request(self, phase: Phase, until: float = inf, **values: Any) -> Quorum:
        """The next quorum in which every group is one process. Waits at most a third of the limit.

        A process that has ended while it waited for a quorum is in one more, beside the next
        process of its group. All groups of this quorum request another one, so that they still
        decide the same.
        """
        assert self._lighthouse is not None, "only rank 0 sends requests"
        until = min(until, monotonic() + self._limit.total_seconds())
        while True:
            quorum = self._lighthouse.quorum(self._entry(phase, **values), until)
            # First, so that a job whose number is taken ends at once and not after the limit.
            if phase == "start":
                own = self._entry(phase)
                check_start(own, without_ended(quorum, own))
            twice = twice_in(quorum)
            if not twice:
                return quorum
            if monotonic() + _POLL_S > until:
                raise PeerError(two_jobs(twice[0]))
            sleep(_POLL_S)

    def _entry(self, phase: Phase, **values: Any) -> Entry:
        return Entry(
            group=self.settings.group,
            phase=phase,
            address=self._address,
            **asdict(self.progress),
            position=self._position(),
            settings=self.required,
            **values,
        )

    def on_first(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0. Return its JSON value, or raise its error, on all ranks.

        On the other ranks, a ValueError is raised as a ValueError, and any other as a PeerError.
        """
        message: dict[str, Any] = {}
        failed: Exception | None = None
        if self._own.group.position == 0:
            try:
                message["value"] = function()
            except Exception as error:  # whatever it is, the other ranks must not wait
                failed = error
                message = {"error": str(error), "is_value": isinstance(error, ValueError)}
        message = broadcast_json(message, 0, self._own.device)
        if failed is not None:
            raise failed
        if "error" in message:
            raise (ValueError if message["is_value"] else PeerError)(message["error"])
        return message["value"]

    def close(self) -> None:
        """Stop the heartbeats. Does not communicate with other ranks."""
        if self._lighthouse is not None:
            self._lighthouse.close()
