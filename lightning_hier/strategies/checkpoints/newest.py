"""Finds the newest checkpoint from which training can resume."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from lightning_hier.strategies.checkpoints.integrity import (
    READER_ERRORS,
    DamagedFileError,
    check_file,
    filesystem_of,
    read_mapped,
    truncated_beside,
)
from lightning_hier.strategies.checkpoints.rank_files import REPLACED, RankFiles, section_of
from lightning_hier.strategies.checkpoints.sharded_folder import metadata_file

_log = logging.getLogger(__name__)


def newest_checkpoint(folder: str | Path, *, weights_only: bool = True) -> str | Path | None:
    """Return the newest complete checkpoint in a directory, to resume from after a fault.

    The newest checkpoint is the one with the latest modification time. Its name decides only if
    times are equal, so copy checkpoints with their times (``cp -p``, ``rsync -t``).

    A checkpoint is complete if its checksums are correct and the files of all ranks in its
    directory exist and are not truncated. Other checkpoints, and those with weights only, are
    skipped with a warning. There is no communication: every rank that sees the directory gets the
    same result::

        trainer.fit(model, ckpt_path=lightning_hier.newest_checkpoint("checkpoints"))

    Args:
        folder: directory of a ModelCheckpoint (``*.ckpt``): a path, or a URL such as ``s3://...``,
            for which each rank reads whole checkpoints until one is complete.
        weights_only: as for ``trainer.fit``. False also accepts files with types that could run
            code, for files that you trust.

    Returns:
        The path (a URL as ``str``), or None if there is none, so that training starts from the
        beginning.

    Raises:
        ValueError: the newest checkpoint is complete, but contains types that ``weights_only=True``
            does not load. The error names them.
        OSError: a file cannot be read for a reason other than damage.
        ImportError: the type of URL needs a package that is not installed. The error names it.

    """
    filesystem, root = filesystem_of(folder)
    if not filesystem.isdir(root):
        return None
    for name in _names(filesystem, root):
        path = _inside(folder, name)
        problem = _problem(path, weights_only)
        if problem is None:
            return path
        _log.warning("the checkpoint %s is skipped: %s", path, problem)
    return None


def last_at_url(trainer: Any) -> str | None:
    """The newest ``last.ckpt`` that a ModelCheckpoint of a Trainer has saved to a URL, or None."""
    for callback in trainer.checkpoint_callbacks:
        resolve = getattr(callback, "_ModelCheckpoint__resolve_ckpt_dir", None)
        folder = "" if resolve is None else str(resolve(trainer))
        filesystem, root = filesystem_of(folder)
        if isinstance(filesystem, LocalFileSystem) or not filesystem.isdir(root):
            continue
        for name in _names(filesystem, root):
            if name.startswith(callback.CHECKPOINT_NAME_LAST):
                return str(_inside(folder, name))
    return None


def _names(filesystem: Any, root: str) -> list[str]:
    """Names of the checkpoints in a directory, newest first."""
    dated = []
    for path in filesystem.ls(root, detail=False):
        if path.endswith((".ckpt", f".ckpt{REPLACED}")):
            try:
                dated.append((filesystem.modified(path), path.rsplit("/", 1)[-1]))
            except FileNotFoundError:  # removed in the meantime, or a link to a removed file
                continue
    return [name for _, name in sorted(dated, reverse=True)]


def _inside(folder: str | Path, name: str) -> str | Path:
    """Join folder and name in the type of the folder. A Path would change ``//`` in a URL."""
    is_url = "://" in str(folder)
    return f"{str(folder).rstrip('/')}/{name}" if is_url else Path(folder) / name


def _problem(path: str | Path, weights_only: bool) -> str | None:
    """Reason why training cannot resume from a checkpoint, or None."""
    filesystem, place = filesystem_of(path)
    is_folder = filesystem.isdir(place)
    file = metadata_file(path) if is_folder else path
    try:
        check_file(file, weights_only=weights_only)
        checkpoint = read_mapped(file, weights_only)
    # Not OSError: a file that cannot be read now may be the newest, and must not be skipped.
    except (DamagedFileError, FileNotFoundError) as error:
        return str(error)
    except READER_ERRORS as error:
        return f"it is damaged: {error}"
    # Optimizers of a divided module are in other files of its folder.
    resumable = "lr_schedulers" if is_folder else "optimizer_states"
    if not isinstance(checkpoint, dict) or resumable not in checkpoint:
        return "it contains weights only, but resuming needs a checkpoint with optimizers"
    try:
        section = section_of(checkpoint)
    except ValueError as error:
        return str(error)
    if section is None:
        return None
    files = RankFiles.saved_with(path, section["save"])
    # Without their checksums, which all ranks verify together when the run resumes.
    return truncated_beside(files.paths(math.prod(section["sizes"])))
