"""Writes checkpoint files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.fabric.plugins import TorchCheckpointIO
from typing_extensions import override


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own CheckpointIO, with local files written beside their place and then renamed.

    A process that is killed, a host that loses power, or a disk that is full leaves an older file
    of the same name as it was. Lightning writes into the folder for temporary files, which may lie
    on another disk; then its last act is a copy that can be cut off.

    The tensors go to the disk as they are, without a copy of the whole file in memory. Remote
    stores show a file only when it is complete, so there nothing differs from Lightning.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``.

        Raises:
            OSError: it could not be written; what was there before is still there.

        """
        filesystem, local = url_to_fs(str(path))
        if not isinstance(filesystem, LocalFileSystem) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        _write(checkpoint, Path(local))


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        stale.unlink(missing_ok=True)  # of a save that was cut off; each name has one writer
    part = path.parent / f".{path.name}.{uuid4().hex}.part"
    try:
        with part.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):  # torch's writer has its own error
            raise OSError(f"the checkpoint {path} could not be written: {error}") from error
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have the new name itself on the disk, where the system offers that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
