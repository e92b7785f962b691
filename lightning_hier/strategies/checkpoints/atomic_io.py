"""Writes checkpoint files that are complete or absent, and reads only undamaged ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from typing_extensions import override

from lightning_hier.callbacks.packages import both
from lightning_hier.loop.pieces import plain_numbers
from lightning_hier.strategies.checkpoints.integrity import (
    READER_ERRORS,
    DamagedFileError,
    check_file,
)

_log = logging.getLogger(__name__)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's CheckpointIO, with local files written to a temporary name and then renamed.

    An older file of the same name remains unchanged if the process is killed, the host loses power
    or the disk is full. Lightning writes to the directory for temporary files, which may be on
    another disk, and then copies the file, which may be interrupted.

    Tensors are written to disk directly, without a copy of the file in memory. Files in remote
    stores are saved as in Lightning, because they become visible only when they are complete, and
    ``storage_options`` are Lightning's error.

    NumPy scalars are saved as Python numbers, because ``weights_only=True`` does not read them.
    Values are compared with the checksums in the file when they are read.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``.

        Raises:
            OSError: the file could not be written. The older file is unchanged.

        """
        checkpoint = plain_numbers(checkpoint)
        # Not by the form of the path, because a URL such as file:///tmp is local too.
        filesystem, local = url_to_fs(str(path))
        if not isinstance(filesystem, LocalFileSystem) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        _write(checkpoint, Path(local))

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load the checkpoint at ``path``.

        Raises:
            FileNotFoundError: there is none.
            DamagedFileError: the file was truncated or changed.
            ValueError: it contains types that ``weights_only=True`` does not load. The error names
                them.

        """
        # torch.load verifies no checksum, and names only the first type that it refuses.
        check_file(path, weights_only=weights_only is not False)
        try:
            return super().load_checkpoint(path, map_location, weights_only)
        except READER_ERRORS as error:
            raise DamagedFileError(
                f"the checkpoint file {path} can't be read and is probably damaged: {error}"
            ) from error

    @override
    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint. A failure is a warning, because the file is no longer needed."""
        try:
            super().remove_checkpoint(path)
        except Exception as error:  # file systems of fsspec raise errors of other types
            _log.warning("the checkpoint %s could not be removed: %s", path, error)


def atomic(io: CheckpointIO | None) -> CheckpointIO:
    """Return ``io`` if the user has set one, and otherwise a new :class:`AtomicCheckpointIO`.

    A wrapper such as ``AsyncCheckpointIO`` gets an :class:`AtomicCheckpointIO` to wrap.
    """
    if io is None:
        return AtomicCheckpointIO()
    wrapper: Any = io
    if hasattr(type(io), "checkpoint_io"):
        wrapper.checkpoint_io = AtomicCheckpointIO()
    return io


def finish_writing(io: CheckpointIO) -> None:
    """Wait until this rank has written all its previous saves.

    It is called before a save. When all ranks have returned, an older save may be removed, because
    no rank writes to its directory. It also limits the memory of pending saves to that of one save.
    """
    if isinstance(io, both(AsyncCheckpointIO)):
        with suppress(Exception):  # of a save, which the next one raises
            io.teardown()  # the next save starts another thread


class _RememberingFile:
    """A file that keeps its first error, because torch's writer raises another one."""

    def __init__(self, write: Callable[[Any], int]) -> None:
        self._write = write
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Do nothing. torch's writer calls it at the end, but closing the file flushes it."""


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    # In the same directory, because only there is a rename one operation. Always the same name, so
    # that the next save overwrites what a killed one has left.
    part = path.parent / f".{path.name}.part"
    try:
        _make_folder(path.parent)
        with part.open("wb") as file:
            writer: Any = _RememberingFile(file.write)
            try:
                torch.save(checkpoint, writer)
            except RuntimeError as error:
                raise writer.error or error from error
            # The contents first: after a power loss, the new name must not refer to an empty file.
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:  # KeyboardInterrupt, too, must leave no part behind
        part.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):  # torch's writer raises its own error
            raise OSError(f"the checkpoint {path} could not be written: {error}") from error
        raise
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    """Create a directory and its parents, and sync their names to disk."""
    # The name of a directory is in its parent, which must reach the disk as well.
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for created in missing:
        _sync_folder(created.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the new name to disk, if the system supports it. Otherwise a power loss may undo it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open directories
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
