"""Finds the newest checkpoint from which training can go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from lightning_hier.strategies.checkpoints.integrity import (
    READER_ERRORS,
    DamagedFileError,
    check_file,
    damage_beside,
)
from lightning_hier.strategies.checkpoints.rank_files import SECTION, RankFiles

_log = logging.getLogger(__name__)


def newest_checkpoint(folder: str | Path, *, weights_only: bool = True) -> str | Path | None:
    """The newest checkpoint in a folder that is complete, to go on from after a fault.

    The newest is the one whose file was modified last, whatever its name says: a copy keeps its
    place only if it keeps its time (``cp -p``, ``rsync -t``). Of equal times the last name counts.

    A checkpoint is complete if its checksums are right and the files that ranks have written beside
    it are all there and not cut off. One that is not is left where it is, with a warning, and so is
    one of weights alone. Every rank that sees the folder gets the same answer; no communication::

        trainer.fit(model, ckpt_path=lightning_hier.newest_checkpoint("checkpoints"))

    Args:
        folder: where a ModelCheckpoint keeps its files (``*.ckpt``): a path, or a URL such as
            ``s3://...``, where each rank reads whole checkpoints until one is complete.
        weights_only: as for ``trainer.fit``; False also takes a file that holds types which could
            run code, if you trust it.

    Returns:
        Its path (a URL as ``str``), or None where there is none, so that training starts from the
        beginning.

    Raises:
        ValueError: the newest is complete, but holds types that ``weights_only=True`` does not
            read; names them.
        OSError: a file can't be read, for a reason other than that it is damaged.
        ImportError: the URL's kind needs a package that is not installed; names it.

    """
    filesystem, root = url_to_fs(str(folder))
    if not filesystem.isdir(root):
        return None
    for name in _names(filesystem, root):
        found = _inside(folder, name)
        problem = _problem(found, weights_only)
        if problem is None:
            return found
        _log.warning("the checkpoint %s is passed over: %s", found, problem)
    return None


def _names(filesystem: Any, root: str) -> list[str]:
    """Names of the checkpoints in a folder, those first that were written last."""
    dated = []
    for path in filesystem.ls(root, detail=False):
        if path.endswith(".ckpt"):
            try:
                dated.append((filesystem.modified(path), path.rsplit("/", 1)[-1]))
            except FileNotFoundError:  # removed since, or a link to a removed file
                continue
    return [name for _, name in sorted(dated, reverse=True)]


def _inside(folder: str | Path, name: str) -> str | Path:
    """As the folder was given, since a Path would make one slash of the two in a URL."""
    is_url = "://" in str(folder)
    return f"{str(folder).rstrip('/')}/{name}" if is_url else Path(folder) / name


def _problem(path: str | Path, weights_only: bool) -> str | None:
    """Why training can't go on from a checkpoint, or None."""
    try:
        check_file(path, weights_only=weights_only)
        checkpoint = _read(path, weights_only)
    except (DamagedFileError, FileNotFoundError) as error:
        return str(error)
    except READER_ERRORS as error:
        return f"it is damaged: {error}"
    if not isinstance(checkpoint, dict) or "optimizer_states" not in checkpoint:
        return "it holds weights alone, and training goes on only from a checkpoint with optimizers"
    section = checkpoint.get(SECTION)
    if section is None:
        return None
    files = RankFiles.saved_with(path, section["save"])
    return damage_beside(files.paths(tuple(section["sizes"])), contents=False)


def _read(path: str | Path, weights_only: bool) -> Any:
    filesystem, place = url_to_fs(str(path))
    if isinstance(filesystem, LocalFileSystem):
        # Tensors stay on the disk: they are not needed.
        return torch.load(place, map_location="cpu", weights_only=weights_only, mmap=True)
    with filesystem.open(place, "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=weights_only)
