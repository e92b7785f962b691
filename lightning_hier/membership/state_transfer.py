"""Gives the state of a group that trains to those that join."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.connections import GroupLostError
from lightning_hier.membership.group_exchange import MOST_ATTEMPTS, GroupExchange
from lightning_hier.membership.lighthouse import Entry
from lightning_hier.membership.transfer import receive_folder, send_folder, share_folder


class StateTransfer:
    """Sends the state of this group as a folder of files, and receives that of another.

    Methods are collectives of the job: all its ranks must call them.

    Args:
        exchange: synchronisations of this group.
        host_of: host number of each rank of the job. Hosts may not share a disk.
        rank: number of this rank in the job.
        log: logs a line, on one rank.

    Attributes:
        received: whether :meth:`receive` has returned a folder, and it has not been removed.

    """

    def __init__(
        self,
        exchange: GroupExchange,
        *,
        host_of: Sequence[int],
        rank: int,
        log: Callable[[str], None],
    ) -> None:
        self._exchange, self._rank, self._log = exchange, rank, log
        # The first rank of each host writes its files.
        self._writers = [host_of.index(host) for host in sorted({*host_of}, key=host_of.index)]
        self._device = exchange.device
        self._folder: Path | None = None

    @property
    def received(self) -> bool:
        """Whether this group has taken a state, of which it still has the files."""
        return self._folder is not None

    def serve(self, save: Callable[[Path], None]) -> None:
        """Send the state to the groups that wait for it, if there are any.

        All groups of the last synchronisation must call it before the next one.

        Args:
            save: saves the state into an empty folder. An OSError, on all ranks, is a warning.

        """
        if not self._exchange.joined:
            return
        identifier, joiners = self._exchange.joiners()
        if not joiners:
            return
        begun, folder = time.monotonic(), self._new_folder()
        try:
            save(folder)
            for writer in self._writers[1:]:  # rank 0 sends the files of all hosts
                self._share(folder, writer)
            for joiner in joiners if self._rank == 0 else ():
                self._send(folder, joiner, identifier)
            # No rank may remove files while rank 0 still sends them.
            with raise_everywhere(self._device, place="the state of this group was sent"):
                pass
        except OSError as error:
            self._warn(f"the state could not be saved for a group that joins: {error}")
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - begun
        groups = ", ".join(str(joiner.group) for joiner in joiners)
        self._log(f"Sent the state to group {groups} in {seconds:.1f} s.")
        if seconds > self._exchange.settings.join_timeout_s / 2:
            self._warn(
                f"sending the state took {seconds:.0f} s: the other groups wait for this one up to "
                "--join_timeout_ms of the Lighthouse. Keep it, and join_timeout_s, well above"
            )

    def _send(self, folder: Path, joiner: Entry, identifier: str) -> None:
        """Send the state to a group. Called by rank 0."""
        quorums, group = self._exchange.quorums, joiner.group
        assert quorums.store is not None, "this is rank 0"
        quorums.mark_ready(identifier, group)
        name = f"{identifier}/state/{group}"
        host, timeout = quorums.host, self._exchange.settings.exchange_timeout
        try:
            send_folder(folder, quorums.store, joiner.address, name, host=host, timeout=timeout)
        except GroupLostError as error:
            self._warn(f"group {group} was lost before it had the state: {error}")

    def receive(self) -> Path:
        """Receive the state of a group that trains, which may be lost meanwhile. Returns a folder.

        Raises:
            PeerError: the groups cannot reach each other, or none trains within the limit.

        """
        quorums, lost = self._exchange.quorums, ""
        self._log("Waiting for the state of a group that trains.")
        # Each attempt takes a new quorum, which may name another group as the source.
        for _ in range(MOST_ATTEMPTS):
            # Never made anew under a name that others have seen, and could take.
            self._folder = folder = self._new_folder()
            lost = quorums.on_first(partial(self._receive_from, folder, *quorums.join()))
            if not lost:
                break
            self.remove()
            self._warn(f"{lost}: waiting for another group")
        else:
            raise PeerError(
                f"group {self._exchange.settings.group} has tried {MOST_ATTEMPTS} times to receive "
                f"the state of another group: {lost}. Check that the hosts of the groups reach "
                "each other on all ports"
            )
        if len(self._writers) > 1:
            self._share(folder, 0)
        return folder

    def _receive_from(self, folder: Path, identifier: str, address: str) -> str:
        """Receive the state. Called by rank 0. Returns why the other group was lost, or ""."""
        settings, host = self._exchange.settings, self._exchange.quorums.host
        name, timeout = f"{identifier}/state/{settings.group}", settings.exchange_timeout
        try:
            receive_folder(folder, address, name, host=host, timeout=timeout)
        except GroupLostError as error:
            return str(error)
        return ""

    def remove(self) -> None:
        """Remove what was received, after all ranks have read it. Does not communicate."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _share(self, folder: Path, source: int) -> None:
        share_folder(folder, source, writes=self._rank in self._writers, device=self._device)

    def _new_folder(self) -> Path:
        """Create a folder with the same path on all hosts of this group, for this user only."""
        quorums = self._exchange.quorums
        folder = Path(quorums.on_first(lambda: tempfile.mkdtemp(prefix="lightning_hier_")))
        with raise_everywhere(self._device, error=OSError, place="the creation of a folder"):
            if self._rank in self._writers:
                _create_private(folder)
        return folder

    def _warn(self, text: str) -> None:
        if self._rank == 0:
            warnings.warn(text, stacklevel=2)


def _create_private(folder: Path) -> None:
    """Create a folder for this user only, unless it exists, on a disk that hosts share."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise
