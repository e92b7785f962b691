"""Who is missing: turns a failed collective into an error that names the late or dead ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol


class PeerError(RuntimeError):
    """A rank did not take part in a collective within the time limit."""


class SupportsStore(Protocol):
    """The part of :class:`torch.distributed.Store` that a roll call needs."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""

    def check(self, keys: list[str], /) -> bool:
        """Tell whether all keys exist, without waiting."""

    def get(self, key: str, /) -> bytes:
        """Value of a key that exists."""


class RollCall:
    """Notes in the job's store where each rank is, and reads them only after a failure.

    A collective that fails says on one rank that time ran out, on another that a connection was
    closed, and on none which rank caused it. So each rank notes which synchronisation it has
    reached before it waits there; the ranks whose note lags behind are the missing ones. Inside a
    group, where a note at every step would be traffic that leaves the group, ranks note only that
    a collective failed, and those who have not noted it after a short grace are the missing ones.
    """

    def __init__(
        self,
        store: SupportsStore,
        rank: int,
        *,
        fit: int = 0,
        grace_s: float = 5.0,
        during: Callable[[str], AbstractContextManager[None]] = lambda place: nullcontext(),
    ) -> None:
        """Write notes of a rank.

        Args:
            store: of the job.
            rank: whose notes they are.
            fit: which fit of these processes it is: notes of the earlier ones are in the store too,
                and would look far ahead.
            grace_s: seconds to wait for the others' notes after a failure.
            during: entered with the place while this rank is in a synchronisation.

        """
        self._store = store
        self._during = during
        self._rank = rank
        self._notes = f"hier/{fit}"
        self._grace_s = grace_s
        self._number = 0
        self._place: str | None = None

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Note that this rank has reached a synchronisation, and that it is in it meanwhile."""
        self._number += 1
        self._place = place
        try:
            self._store.set(self._note_key(self._rank), f"{self._number}|{place}")
        except RuntimeError as error:
            raise self._unreachable(place, error, error) from error
        with self._during(place):
            yield
        self._place = None

    def report(self, ranks: Sequence[int], cause: Exception) -> PeerError:
        """Explain a collective of ``ranks`` that failed with ``cause``."""
        place = self._place or f"a step after synchronisation {self._number}"
        try:
            absent = self._lagging(ranks) if self._place else self._silent(ranks)
            return PeerError(self._message(absent, place, cause))
        except RuntimeError as unreachable:
            return self._unreachable(place, unreachable, cause)

    def _lagging(self, ranks: Sequence[int]) -> list[int]:
        notes = {rank: self._note(rank) for rank in ranks}
        return [rank for rank, (number, _) in notes.items() if number < self._number]

    def _silent(self, ranks: Sequence[int]) -> list[int]:
        key = f"{self._notes}/failed/{self._number}"
        self._store.set(f"{key}/{self._rank}", "1")
        until = time.monotonic() + self._grace_s
        while True:
            absent = [rank for rank in ranks if not self._store.check([f"{key}/{rank}"])]
            if not absent or time.monotonic() > until:
                return absent
            time.sleep(0.05)

    def _note_key(self, rank: int) -> str:
        return f"{self._notes}/at/{rank}"

    def _note(self, rank: int) -> tuple[int, str]:
        key = self._note_key(rank)
        if not self._store.check([key]):
            return 0, ""
        number, _, place = self._store.get(key).decode().partition("|")
        return int(number), place

    def _message(self, absent: list[int], place: str, cause: Exception) -> str:
        if not absent:
            return (
                f"{place} failed although every rank had reached it: a peer was lost on the way. "
                f"The collective said: {_first_line(cause)}"
            )
        named = ", ".join(map(str, absent))
        return (
            f"{place} failed because rank{'s' * (len(absent) > 1)} {named} did not take part: "
            f"{'; '.join(self._last_seen(rank) for rank in absent)}. Look at the log of "
            f"rank {named}; ranks that are slow but healthy need a larger timeout. "
            f"The collective said: {_first_line(cause)}"
        )

    def _last_seen(self, rank: int) -> str:
        number, place = self._note(rank)
        seen = f"was last seen at {place}" if number else "has not reached any synchronisation"
        return f"rank {rank} {seen}"

    def _unreachable(self, place: str, unreachable: Exception, cause: Exception) -> PeerError:
        return PeerError(
            f"{place} failed, and the job's store on rank 0's host does not answer: rank 0 or its "
            f"host is gone ({_first_line(unreachable)}). The collective said: {_first_line(cause)}"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
