"""Gives the state of a group that trains to those that join, as a folder of files."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.progress_record import PeerError, naming_missing
from lightning_hier.membership.connections import (
    GroupLostError,
    LossOfGroups,
    open_store,
    process_group,
    wait_for_all,
)
from lightning_hier.membership.group_exchange import MOST_ATTEMPTS, GroupExchange

# Bytes that are read and sent at once. The time limit holds for each piece, however large the
# state is.
_PIECE = 16 << 20


class StateTransfer:
    """Sends the state of this group as a folder of files, and receives that of another.

    Methods are collectives of the job: all its ranks must call them.

    Args:
        exchange: synchronisations of this group.
        host_of: host number of each rank of the job. Hosts may not share a disk.
        rank: number of this rank in the job.

    Attributes:
        received: whether :meth:`receive` has returned a folder, and it has not been removed.

    """

    def __init__(self, exchange: GroupExchange, *, host_of: Sequence[int], rank: int) -> None:
        self._exchange, self._rank = exchange, rank
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
        begun, folder, quorums = time.monotonic(), self._new_folder(), self._exchange.quorums
        try:
            save(folder)
            for writer in self._writers[1:]:  # rank 0 sends the files of all hosts
                self._share(folder, writer, writes=self._rank == 0)
            for joiner in joiners if self._rank == 0 else ():
                assert quorums.store is not None, "this is rank 0"
                quorums.mark_ready(identifier, joiner.group)
                place = joiner.group, identifier, joiner.address
                if lost := self._copy(folder, *place, own=quorums.store):
                    self._warn(f"group {joiner.group} was lost before it had the state: {lost}")
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
        self._exchange.quorums.log(f"Sent the state to group {groups} in {seconds:.1f} s.")
        if seconds > self._exchange.settings.join_timeout_s / 2:
            self._warn(
                f"sending the state took {seconds:.0f} s: the other groups wait for this one up to "
                "--join_timeout_ms of the Lighthouse. Keep it, and join_timeout_s, well above"
            )

    def receive(self) -> Path:
        """Receive the state of a group that trains, which may be lost meanwhile. Returns a folder.

        Raises:
            PeerError: the groups cannot reach each other, or none trains within the limit.

        """
        quorums, group, lost = self._exchange.quorums, self._exchange.settings.group, ""
        quorums.log("Waiting for the state of a group that trains.")
        # Each attempt takes a new quorum, which may name another group as the source.
        for _ in range(MOST_ATTEMPTS):
            # Never made anew under a name that others have seen, and could take.
            self._folder = folder = self._new_folder()
            lost = quorums.on_first(partial(self._copy, folder, group, *quorums.join()))
            if not lost:
                break
            self.remove()
            self._warn(f"{lost}: waiting for another group")
        else:
            raise PeerError(
                f"group {group} has tried {MOST_ATTEMPTS} times to receive the state of another "
                f"group: {lost}. Check that the hosts of the groups reach each other on all ports"
            )
        if len(self._writers) > 1:
            self._share(folder, 0, writes=self._rank in self._writers)
        return folder

    def _copy(
        self, folder: Path, group: int, identifier: str, address: str, own: Store | None = None
    ) -> str:
        """Call :func:`copy_between` on rank 0, for the number of the group that joins.

        Returns why the other group was lost, or "". ``identifier`` is that of the quorum in which
        the state was offered.
        """
        host, timeout = self._exchange.quorums.host, self._exchange.settings.exchange_timeout
        try:
            copy_between(folder, f"{identifier}/state/{group}", address, own, host, timeout)
        except GroupLostError as error:
            return str(error)
        return ""

    def remove(self) -> None:
        """Remove what was received, after all ranks have read it. Does not communicate."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _share(self, folder: Path, source: int, *, writes: bool) -> None:
        assert dist.group.WORLD is not None, "init_process_group has been called"
        with naming_missing("the copy of a state between hosts"):
            copy_files(folder, dist.group.WORLD, source, writes=writes, device=self._device)

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


def copy_between(
    folder: Path, name: str, address: str, own: Store | None, host: str, timeout: timedelta
) -> None:
    """Send the files of a folder to another group or, without a store, receive them.

    Args:
        folder: folder of the state.
        name: name of the transfer, the same on both sides, and another one for each transfer.
        address: ``host:port`` of the store of the other group.
        own: store of this group, which sends.
        host: IP address of this rank.
        timeout: time limit of the connection, and of every piece.

    Raises:
        GroupLostError: the other group was lost.
        ValueError: the other group has sent a path outside of the folder.

    """
    number, doing = 1, "receiving the state of another group"
    if own is not None:
        number, doing = 0, "sending the state to a group that joins"
    with LossOfGroups().explaining((), doing):
        store = open_store(address, timeout) if own is None else own
        wait_for_all(store, name, number, 2, [address], timeout)
        copy_files(folder, process_group(name, number, 2, store, host, timeout), 0)


def copy_files(
    folder: Path,
    group: dist.ProcessGroup,
    source: int,
    *,
    writes: bool = True,
    device: torch.device | str = "cpu",
) -> None:
    """Copy the files that one rank has in a folder to the other ranks of a process group.

    A collective of the group. Each file is sent to all ranks, whether they write it or not.

    Args:
        folder: existing folder.
        group: process group.
        source: position of the rank whose files are copied.
        writes: whether this rank writes the files that it does not have. Hosts may share a disk.
        device: device of collectives.

    Raises:
        ValueError: another rank has sent a path outside of the folder.

    """
    is_source = group.rank() == source

    def broadcast(values: bytearray) -> bytes:
        sent = torch.frombuffer(values, dtype=torch.uint8).to(device)
        dist.broadcast(sent, group=group, group_src=source, async_op=True).wait()
        return sent.cpu().numpy().tobytes()

    header = json.dumps(_sizes(folder) if is_source else {}).encode()
    length = int.from_bytes(broadcast(bytearray(len(header).to_bytes(8, "big"))), "big")
    header = broadcast(bytearray(header if is_source else length))
    for relative, size in json.loads(header).items():
        # A path with ".." would overwrite files of this user.
        path = (folder / relative).resolve()
        if not is_source and not path.is_relative_to(folder.resolve()):
            raise ValueError(f"another group has sent the path {relative!r}")
        opened: AbstractContextManager[Any] = nullcontext()
        keeps = writes and not is_source and not path.exists()
        if is_source or keeps:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = path.open("rb" if is_source else "wb")
        with opened as file:
            for start in range(0, size, _PIECE):
                length = min(_PIECE, size - start)
                piece = broadcast(bytearray(file.read(length) if is_source else length))
                if keeps:
                    file.write(piece)


def _sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of each file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
