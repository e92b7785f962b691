"""Progress record: turns a failed collective into an error that names the missing ranks."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import ref

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.gloo_connections import close_connections
from lightning_hier.comm.job_store import JobStore

# Messages of gloo, NCCL and the store that mean a lost or late peer.
_LOST = re.compile(
    r"timed? ?out|connect|closed|closure|broken pipe|reset by peer|aborted|unreachable|"
    r"no route|remote|ncclSystemError",
    re.IGNORECASE,
)
# Some errors of gloo name its connections ("pair") only.
_BACKENDS = re.compile("gloo|nccl|pair closure", re.IGNORECASE)

# Separates the place of a rank from more about it, in its record.
_DETAIL = "\n"

# Most ranks that a message lists.
_MOST_NAMED = 8

_Value = TypeVar("_Value")


class PeerError(RuntimeError):
    """Another rank is lost or late, is in another collective, or has failed."""


class DifferentCollectivesError(RuntimeError):
    """Data of another collective than that of this rank arrived: ranks are in different ones."""


class EveryRanksError(RuntimeError):
    """An error that all ranks raise at the same place. None names that of another in its stead."""


class ProgressRecord:
    """Records the position of this rank in the job's store, and reads all positions on a failure.

    A failed collective reports a time-out on one rank and a closed connection on another, but not
    the rank that caused the failure. Each rank therefore records its position before it waits for
    all ranks (:meth:`at`). Collectives inside a group record nothing, because the traffic would
    leave the group. After a failure, a rank records it and waits a short time for the records of
    the other ranks. Ranks without such a record are missing; at a collective of all ranks, only
    those that have not reached it. If all ranks have failed, the missing ranks are those that
    failed in another collective. A rank whose collective has failed closes its connections, so
    that ranks that wait for it fail too. Rank 0, which may host the store, raises its error last.

    Args:
        store: the job's ``torch.distributed.Store``.
        rank: rank of this process.
        world_size: number of ranks.
        number: number of collectives of all ranks that an earlier record has counted.
        grace_s: seconds to wait for the records of other ranks after a failure.

    Attributes:
        own_error: error with which training on this rank ends, see :meth:`note_error`.
        detected: returns the error of a lost rank if other connections have detected the loss.
        number: number of collectives of all ranks so far. Equal on all ranks in one collective.
        grace_s: see above.

    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        *,
        number: int = 0,
        grace_s: float = 5.0,
    ) -> None:
        self._store = JobStore(store)
        self._rank = rank
        self._everyone = range(world_size)
        # The store keeps the records of earlier fits. Their numbers are below the first one.
        self._first = self.number = number
        self._place: str | None = None
        self._last = "the start of the job"
        self._reported: str | None = None
        self.own_error: BaseException | None = None
        self.grace_s = grace_s
        self.detected: Callable[[], BaseException | None] = lambda: None

    @contextmanager
    def at(self, place: str, detail: str = "") -> Iterator[None]:
        """Record that this rank is at a collective of all ranks while the body runs.

        All ranks must enter it, in the same order. A nested call is part of the outer one.

        Args:
            place: name of the collective, the same on all ranks.
            detail: more about this rank, for messages.

        Raises:
            PeerError: a collective in the body failed because a rank was lost or late, or is in
                another collective. The error names it.

        """
        if self._place is not None:
            yield
            return
        # Recorded before the wait: a rank that never comes has an older number than the others.
        self._place = place
        self.number += 1
        try:
            try:
                self._record("at", f"{place}{_DETAIL}{detail}")
            except RuntimeError as error:
                raise PeerError(self._unreachable(error, error)) from error
            with self.explaining(self._everyone):
                yield
            self._last = self._place
        finally:
            self._place = None

    @contextmanager
    def explaining(self, ranks: Sequence[int], doing: str = "") -> Iterator[None]:
        """Name missing ranks among ``ranks`` if the body fails because a rank was lost or late.

        Other errors are raised unchanged, with a note that contains ``doing`` if it is given.

        Raises:
            PeerError: a collective of ``ranks`` failed because a rank was lost or late.

        """
        try:
            yield
        except PeerError:
            raise
        except RuntimeError as error:
            if self._reported is not None and self._reported in str(error):
                # The error was raised in a hook or a callback, and C++ wrapped it in another.
                raise PeerError(self._reported) from error
            if not (self._place and self._mixed_up(error)) and not is_lost_peer(error):
                if doing:
                    _add_note(error, f"raised in {doing}, {self._where}")
                raise
            # At a collective of all ranks, a group may fail because a rank of another one is lost.
            raise self._report(self._everyone if self._place else ranks, error) from error

    def align(self, numbers: Sequence[int]) -> None:
        """Continue above the highest number of all ranks, which may have failed at different ones.

        All ranks must call it in the same collective.
        """
        # Above, and not at it: the rank with the highest number has a record with this number.
        self._first = self.number = max(numbers) + 1
        self.own_error = None

    @property
    def _where(self) -> str:
        return f"at {self._place}" if self._place else f"a step after {self._last}"

    def _report(self, ranks: Sequence[int], cause: Exception) -> PeerError:
        try:
            self._raise_detected()  # first, because the store may be on the lost rank's host
            missing, reached = self._missing(ranks)
            self._reported = self._message(missing, reached, cause)
            self._record("done", "")
            if self._rank == 0:  # its process may host the store, from which the others still read
                self._without_record("done", [rank for rank in ranks if rank not in missing])
        except PeerError as detected:
            self._reported = str(detected)
        except RuntimeError as unreachable:  # the store is on rank 0's host
            self._reported = self._unreachable(unreachable, cause)
        return PeerError(self._reported)

    def _missing(self, ranks: Sequence[int]) -> tuple[list[int], bool]:
        """Missing ranks, and whether they had reached the collective."""
        self._record("failed", "")
        close_connections()
        silent = self._without_record("failed", ranks)
        failing = [rank for rank in self.errors() if rank != self._rank]
        if failing:
            return failing, False
        failed = [rank for rank in ranks if rank not in silent]
        elsewhere = [rank for rank in failed if self._read("failed", rank)[0] != self.number]
        if self._place is None:
            # In a step of a group, ranks record no position. A rank that failed at another
            # collective is missing here, although it is not silent.
            return sorted([*silent, *elsewhere]), False
        # A silent rank that has reached this collective may be waiting in it, like this one did.
        late = [rank for rank in silent if self._read("at", rank)[0] < self.number]
        apart = [rank for rank in ranks if rank in self._apart()]
        if apart and not late:
            return apart, False
        return (silent, True) if silent and not late else (late or elsewhere, False)

    def _apart(self) -> dict[int, str]:
        """Places of the ranks that have reached another collective of all ranks than this one."""
        seen = {rank: self._read("at", rank) for rank in self._everyone}
        places = {rank: text.split(_DETAIL)[0] for rank, (_, text) in seen.items()}
        # Compared by place: one more collective on one rank makes the numbers of arrivals equal.
        return {
            rank: place
            for rank, place in places.items()
            if place != self._place and seen[rank][0] >= self.number
        }

    def _mixed_up(self, error: RuntimeError) -> bool:
        """Whether a collective failed because another rank is in a different one."""
        if isinstance(error, DifferentCollectivesError):
            return True
        try:
            return _is_of_backend(error) and bool(self._apart())
        except RuntimeError:  # the store does not answer
            return False

    def _without_record(self, kind: str, ranks: Sequence[int]) -> list[int]:
        """Ranks without a record of this kind in this run after a wait of ``grace_s``."""
        silent, until = list(ranks), time.monotonic() + self.grace_s
        while True:
            silent = [rank for rank in silent if self._read(kind, rank)[0] < self._first]
            if not silent or time.monotonic() > until:
                return silent
            self._raise_detected()
            time.sleep(0.05)

    def _raise_detected(self) -> None:
        error = self.detected()
        if isinstance(error, PeerError):
            raise error

    def _message(self, missing: list[int], reached: bool, cause: Exception) -> str:
        place = self._place or self._where
        named = named_ranks(missing)
        apart = self._apart() if self._place else {}
        if missing and set(missing) <= set(apart):
            # Without ranks that have not come that far.
            there = [r for r in self._everyone if self._read("at", r)[0] >= self.number]
            places = ranks_by_value(apart.get(rank, place) for rank in there)
            seen = "; ".join(
                f"{named_ranks([there[i] for i in ranks])} at {own}"
                for own, ranks in places.items()
            )
            return (
                f"{place} failed because the ranks are in different collectives: {seen}. "
                "Callbacks, loggers, loaders and saves that communicate must be the same on all "
                f"ranks. The collective reported: {_first_line(cause)}"
            )
        if not missing:
            why = "although every rank had reached it: a connection was lost on the way"
        elif reached:
            why = f"although every rank had reached it: {named} was lost on the way"
        else:
            seen = "; ".join(self._last_seen(rank) for rank in missing)
            why = f"because {named} did not take part: {seen}"
        look = f"See the log of {named}" if missing else "See the logs of all ranks"
        closed = "closed by peer" in str(cause).lower()  # a slow rank keeps its connections
        slow = "" if closed or self.errors() else "; increase the timeout if ranks are only slow"
        return f"{place} failed {why}. {look}{slow}. The collective reported: {_first_line(cause)}"

    def note_error(self, error: BaseException) -> None:
        """Keep the error with which training on this rank ends, and let the others name it."""
        self.own_error = error
        # The first is a consequence of the error of another rank. The others raise the second.
        if isinstance(error, (PeerError, EveryRanksError)):
            return
        with suppress(RuntimeError):  # the store may be gone
            self._record("error", f"{type(error).__name__}: {_first_line(error)}")

    def errors(self) -> dict[int, str]:
        """Errors that ranks have recorded in this run, by rank."""
        found = {rank: self._read("error", rank) for rank in self._everyone}
        return {rank: text for rank, (number, text) in found.items() if number >= self._first}

    def without_error(self) -> list[int]:
        """Ranks that have recorded no error after a wait of ``grace_s``."""
        return self._without_record("error", self._everyone)

    def raise_first_error(self) -> None:
        """Raise the error of this rank if it has one, or else one that names those of others.

        Raises:
            PeerError: another rank has recorded an error.

        """
        if self.own_error is not None:
            raise self.own_error
        errors = self.errors()
        if errors:
            failed = "; ".join(f"rank {rank} had failed with {errors[rank]}" for rank in errors)
            raise PeerError(f"{failed}. See the log of {named_ranks(list(errors))}")

    def _last_seen(self, rank: int) -> str:
        _, text = self._read("at", rank)
        place = ", ".join(filter(None, text.split(_DETAIL)))
        seen = f"was last seen at {place}" if place else "has not reached any synchronisation"
        error = self.errors().get(rank)
        return f"rank {rank} {seen}{f', and had failed with {error}' if error else ''}"

    def _record(self, kind: str, text: str) -> None:
        self._store.set(f"hier/{kind}/{self._rank}", f"{self.number}|{text}")

    def _read(self, kind: str, rank: int) -> tuple[int, str]:
        number, _, text = (self._store.get(f"hier/{kind}/{rank}") or "-1|").partition("|")
        return int(number), text

    def _unreachable(self, unreachable: Exception, cause: Exception) -> str:
        return (
            f"{self._place or self._where} failed, and the job's store on rank 0's host does not "
            f"answer: rank 0 or its host is gone ({_first_line(unreachable)}). The collective "
            f"reported: {_first_line(cause)}"
        )


def progress_record() -> ProgressRecord:
    """The record of the default process group, which must exist. Does not communicate."""
    global _record
    world = dist.group.WORLD
    assert world is not None, "init_process_group has been called"
    if _record is None or _record[0]() is not world:
        store = world.get_group_store()
        # The store may still contain entries of an earlier group, whose numbers must be lower.
        number = 0 if _record is None else _record[1].number + 1
        record = ProgressRecord(store, dist.get_rank(), dist.get_world_size(), number=number)
        _record = ref(world), record
    return _record[1]


# A weak reference, because no reference to a group may remain when the process exits.
_record: tuple[ref[dist.ProcessGroup], ProgressRecord] | None = None


def naming_missing(place: str, group: Any = None) -> AbstractContextManager[None]:
    """Name the missing ranks if a collective of ``group`` fails. None is the world."""
    if not dist.is_initialized():
        return nullcontext()
    if group in (None, dist.group.WORLD):
        return progress_record().at(place)
    return progress_record().explaining(dist.get_process_group_ranks(group))


def naming_missing_of_ddp(model: object) -> AbstractContextManager[None]:
    """Name the missing ranks of its group if DDP's own communication fails."""
    if not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return progress_record().explaining(dist.get_process_group_ranks(model.process_group))


def name_missing_at_exit() -> None:
    """Let an error that ends this process, as DDP's own after a lost rank, name the missing ranks.

    In a plain loop, backward passes are called by the user, and nothing can catch their errors.
    """
    if getattr(sys.excepthook, "func", None) is not _explained:
        sys.excepthook = partial(_explained, sys.excepthook)


def _explained(
    shown: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    try:
        call_naming_missing(_raise, error.with_traceback(trace))
    except BaseException as explained:
        shown(type(explained), explained, explained.__traceback__)


def _raise(error: BaseException) -> None:
    raise error


def call_naming_missing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and name the missing ranks if a collective of the user in it fails."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if not dist.is_initialized():
            raise
        # The group of the user's collective is not known here, so any rank may be missing.
        with progress_record().explaining(range(dist.get_world_size())):
            raise error


def ranks_by_value(values: Iterable[_Value]) -> dict[_Value, list[int]]:
    """Ranks by value, in the order of the first rank with each value, for :func:`named_ranks`.

    Args:
        values: value of each rank, in order of rank.

    """
    ranks: dict[_Value, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def named_ranks(ranks: Sequence[int], of: str = "rank") -> str:
    """Numbers of ranks, or of others, with their noun, for messages. Long lists are shortened."""
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    omitted = len(ranks) - _MOST_NAMED
    return f"{of}{'s' * (len(ranks) > 1)} {shown}" + (
        f" and {omitted} other{'s' * (omitted > 1)}" if omitted > 0 else ""
    )


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether a collective or the store failed because a peer was lost or late."""
    return bool(_is_of_backend(error) and _LOST.search(str(error)))


def _is_of_backend(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or bool(_BACKENDS.search(str(error)))


def _add_note(error: Exception, note: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}",)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
