"""Memory that the ranks of a group share: a mapped file, and short locks on its bytes."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Structure
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

FOLDER = Path("/dev/shm")
Counters = TypeVar("Counters", bound=Structure)
# Pauses between two attempts to lock. A lock is held for a pass or two over a sum.
_FIRST_PAUSE_S = 2e-5
_LONGEST_PAUSE_S = 1e-3


def create_file(size: int) -> Path:
    """Create a file of ``size`` zero bytes in a new folder that only this user may open.

    Its pages are allocated now, because a process is killed by a signal if it writes to a page for
    which no memory is left.

    Raises:
        OSError: there is not enough memory. The message contains the required size.

    """
    # A folder of its own: /dev/shm is open to all users, who could otherwise take the name first.
    private = Path(tempfile.mkdtemp(prefix="lightning-hier-", dir=FOLDER))
    path = private / "replica"
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)
    except OSError as error:
        remove_file(path)
        raise OSError(
            error.errno,
            f"a node's replica and the accumulators of its devices need {size / 2**20:.0f} MiB of "
            f"shared memory in {FOLDER}, which has {shutil.disk_usage(FOLDER).free / 2**20:.0f} "
            f"MiB left ({error.strerror}); containers get more by --shm-size",
        ) from error
    return path


def memory_id() -> str:
    """Text that is equal only on ranks that can share memory.

    It contains the boot of the kernel and the number of the file system, because hosts may have
    equal names, and containers on one host may have separate shared memory.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{FOLDER.stat().st_dev}"


def remove_file(path: Path) -> None:
    """Remove a file of :func:`create_file` and its folder. Existing maps stay valid."""
    path.unlink(missing_ok=True)
    path.parent.rmdir()


class SharedFile:
    """This process's map of a file in shared memory.

    It is mapped once in a process: the kernel drops a process's locks on a file when any
    descriptor of that file is closed.

    Args:
        path: path of an existing file, which may be removed afterwards.

    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._handle, 0)

    def close(self) -> None:
        """Release the locks. The map itself ends with the last tensor in it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def tensor(self, dtype: torch.dtype, numel: int, offset: int) -> Tensor:
        """A 1-D tensor in the file, which starts at byte ``offset``."""
        if numel == 0:  # torch.frombuffer refuses it
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=numel, offset=offset)

    def structure(self, kind: type[Counters], offset: int) -> Counters:
        """A structure of ctypes in the file, which starts at byte ``offset``."""
        return kind.from_buffer(self._map, offset)

    def lock(self, byte: int) -> ByteLock:
        """The lock on a byte. Threads of one process must share the object."""
        return ByteLock(self._handle, byte)


class ByteLock:
    """A lock on a byte of a file, against other processes and other threads.

    The kernel releases a record lock when its process ends, even if it is killed. Unlike a lock of
    ``flock``, it is not inherited by forked processes (DataLoader's workers). Record locks do not
    exclude threads of the same process, so there is also a mutex.
    """

    def __init__(self, handle: int, byte: int) -> None:
        self._handle = handle
        self._byte = byte
        self._mutex = threading.Lock()

    @contextmanager
    def locked(self, limit_s: float) -> Iterator[bool]:
        """Hold the lock in the body of ``with``. False if it was not free for ``limit_s``."""
        until = time.monotonic() + limit_s
        if not self._mutex.acquire(timeout=limit_s):
            yield False
            return
        try:
            locked = self._lock_until(until)
            try:
                yield locked
            finally:
                if locked:
                    fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, self._byte)
        finally:
            self._mutex.release()

    def _lock_until(self, until: float) -> bool:
        # The kernel has no time limit for this wait, so the lock is polled.
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte)
                return True
            except (BlockingIOError, PermissionError):  # POSIX allows both for a lock that is held
                if time.monotonic() >= until:
                    return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
