"""Client of torchft's Lighthouse: quorums of the groups, and heartbeats of this one."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from lightning_hier.comm.job_store import within
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.torchft import quiet_torchft

Phase = Literal["start", "init", "join", "block", "vote", "serve"]
"""Why a group requests a quorum.

It starts, joins others, exchanges, votes on an exchange, or serves its state to those that join.
"""

# Seconds between heartbeats, and between two requests after a failure.
_HEARTBEAT_S = 0.1
_RETRY_S = 0.5
# Seconds after which a Lighthouse that has restarted has received heartbeats of all groups.
_HEARTBEATS_KNOWN_S = 3.0
# A request ends after so many seconds and is repeated, so that a Lighthouse that has come back
# without its state is asked again.
_REQUEST_S = 60.0


@dataclass(frozen=True)
class Entry:
    """Entry of a group in a quorum.

    Attributes:
        group: number of the group.
        phase: why it requests the quorum.
        address: ``host:port`` of its store.
        begun: time, in seconds on the clock of the Lighthouse, at which its run started; 0 before.
        commits: number of synchronisations that its model contains.
        last_commit: identifier of the quorum of the last of them, or of the initial model. Groups
            with the same one have the same global model. Empty before the first.
        position: its epoch, and the batches of this epoch that it has used.
        votes_for: identifier of the quorum whose synchronisation has succeeded in this group. Empty
            if it has failed, and outside of votes.
        part: name of what it exchanges, such as a fragment of the model.
        waited: whether it has waited long enough for other groups at a start.
        settings: settings that must be equal in all groups, and the number of ranks.

    """

    group: int
    phase: Phase
    address: str
    begun: float = 0.0
    commits: int = 0
    last_commit: str = ""
    position: Sequence[int] = (0, 0)
    votes_for: str = ""
    part: str = ""
    waited: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Quorum:
    """The groups of one quorum. All of them get the same one.

    Attributes:
        identifier: identifies the quorum among all, also after the Lighthouse was restarted.
        time: time of the quorum in seconds, on the clock of the Lighthouse.
        entries: entries of the groups, in order of their numbers.

    """

    identifier: str
    time: float
    entries: Sequence[Entry]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Quorum:
        """Create it from the values of its fields, as JSON represents them."""
        return cls(**{**values, "entries": [Entry(**entry) for entry in values["entries"]]})

    def within(self, *phases: Phase) -> list[Entry]:
        """Entries in one of these phases."""
        return [entry for entry in self.entries if entry.phase in phases]


class Lighthouse:
    """Connection of one rank of a group to the Lighthouse.

    torchft's Manager sends the heartbeats from a native thread, so that they continue while Python
    or a transfer keeps this process busy.

    Args:
        address: address of the Lighthouse.
        group: number of the group.
        store: ``host:port`` of the store of the group.
        limit: longest wait for a Lighthouse that does not answer.
        log: logs a line.

    Raises:
        PeerError: there is no Lighthouse at this address within the limit.

    """

    def __init__(
        self, address: str, group: int, store: str, limit: timedelta, log: Callable[[str], None]
    ) -> None:
        quiet_torchft()
        # Imported here, because torchft is an extra, and its import takes a second.
        from torchft import coordination

        self._torchft: Any = coordination
        self._address = address
        self._log = log
        # A group that restarts within the time of its heartbeats is another replica.
        self._replica = f"{group}:{uuid.uuid4()}"
        self._last: tuple[int, set[str]] = 0, set()  # number and groups of the last quorum
        self._client: Any = None
        host, _, _ = store.rpartition(":")
        self._manager = self._until_answered(
            lambda timeout: coordination.ManagerServer(
                replica_id=self._replica,
                lighthouse_addr=address,
                hostname=host,
                bind=f"[{host}]:0" if ":" in host else f"{host}:0",
                store_addr=store,
                world_size=1,  # rank 0 alone talks to torchft, for all ranks of the group
                heartbeat_interval=timedelta(seconds=_HEARTBEAT_S),
                connect_timeout=timeout,
                quorum_retries=0,
            ),
            time.monotonic() + limit.total_seconds(),
        )

    def quorum(self, entry: Entry, until: float) -> Quorum:
        """Wait for the next quorum. Every group that takes part must call it.

        Args:
            entry: entry of this group.
            until: end of the wait, as a time of ``time.monotonic``.

        Raises:
            PeerError: there was no quorum until then.

        """
        answer = self._until_answered(lambda timeout: self._request(entry, timeout), until)
        while self._has_restarted(answer):
            # It has no heartbeats of the others yet, and this group would go on without them.
            time.sleep(_HEARTBEATS_KNOWN_S)
            answer = self._until_answered(lambda timeout: self._request(entry, timeout), until)
        seconds, nanos = answer.created.seconds, answer.created.nanos
        # Members that are no groups of this version end a start, but not groups that train.
        strict = entry.phase == "start"
        entries = [
            valid for member in answer.participants if (valid := _entry_of(member, strict=strict))
        ]
        # With its time, because a Lighthouse that has restarted counts from the beginning.
        return Quorum(
            f"{answer.quorum_id}.{seconds}.{nanos:09d}",
            seconds + nanos * 1e-9,
            sorted(entries, key=lambda valid: valid.group),
        )

    def _has_restarted(self, quorum: Any) -> bool:
        """Whether a Lighthouse without its former state formed a quorum that lacks groups.

        A Lighthouse gives a higher number to every quorum of other groups than the last one.
        """
        members = {member.replica_id for member in quorum.participants}
        number, before = self._last
        self._last = quorum.quorum_id, members
        return quorum.quorum_id <= number and not before <= members

    def _request(self, entry: Entry, timeout: timedelta) -> Any:
        if self._client is None:
            self._client = self._torchft.LighthouseClient(self._address, timeout)
        return self._client.quorum(
            self._replica,
            timeout=timeout,
            address=self._manager.address(),
            store_address=entry.address,
            step=entry.commits,
            world_size=1,
            shrink_only=False,
            data=asdict(entry),
        )

    def _until_answered(self, request: Any, until: float) -> Any:
        """Repeat ``request`` until it is answered, at most until this time."""
        begun, logged = time.monotonic(), False
        while True:
            left = until - time.monotonic()
            limit = timedelta(seconds=max(min(left, _REQUEST_S), 0.001))
            try:
                return within(None, partial(request, limit))
            except (RuntimeError, TimeoutError, OSError) as error:
                self._client = None  # the connection of a Lighthouse that has restarted is dead
                if left <= _RETRY_S:
                    waited = time.monotonic() - begun
                    raise PeerError(f"{self._problem(error)} (waited {waited:.0f} s)") from error
                if not logged:
                    logged = True
                    self._log(f"{self._problem(error)}. Trying again for up to {left:.0f} s.")
                time.sleep(_RETRY_S)

    def _problem(self, error: Exception) -> str:
        """Why there was no quorum, and the way out."""
        text = str(error)
        if any(word in text for word in ("connect", "refused", "protocol")):
            # torchft puts the error of the system last, behind several layers of its own.
            cause = text.split(": ")[-1] if "os error" in text else text[:200]
            return (
                f"the Lighthouse at {self._address} cannot be reached ({cause}): start it with "
                "`torchft_lighthouse`, and check the address and its port"
            )
        return (
            f"the Lighthouse at {self._address} has formed no quorum ({text[:200]}): start the "
            "other groups. A third of timeout must be longer than a block and a validation"
        )

    def close(self) -> None:
        """Stop the heartbeats, so that the other groups do not wait for this one."""
        self._manager.shutdown()


def _entry_of(member: Any, *, strict: bool) -> Entry | None:
    """Entry of a member of a quorum. None if it is no group of this version of the package.

    Raises:
        ValueError: it is none, and ``strict`` is set.

    """
    try:
        return Entry(**member.data)
    except TypeError as error:
        if not strict:
            return None
        raise ValueError(
            f"{member.replica_id!r} takes part in quorums, but is no group of this version of "
            "lightning_hier: install the same version in all groups, and use a Lighthouse of their "
            "own"
        ) from error


def newest(entries: Sequence[Entry]) -> Entry | None:
    """The entry whose model the other groups take, or None if none of them has trained.

    It belongs to the run that started first, so that groups that were started anew never replace
    the model of one that has trained. In one run, it is the model of the most commits, and of
    those a group that trains.
    """
    trained = [entry for entry in entries if entry.last_commit]
    same = Counter(entry.last_commit for entry in trained)

    def rank(entry: Entry) -> tuple[float, int, bool, int, str]:
        trains = entry.phase == "block"
        # The identifier comes last, so that all groups choose the same model.
        return -entry.begun, entry.commits, trains, same[entry.last_commit], entry.last_commit

    return max(trained, key=rank, default=None)
