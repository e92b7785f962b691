"""Where the state of ranks lies beside a checkpoint, and whether it is all there.

Beside ``name.ckpt`` there is a folder ``name.ckpt.ranks`` with one folder for the save that
``name.ckpt`` belongs to: ``rank_00003.pt`` for what differs from rank to rank, ``group_00001.pt``
for what the ranks of a group have in common. The file itself is written last and names the save,
so a checkpoint is complete if it can be read and everything that it names is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

# Key of a checkpoint under which this package keeps what is small and the same on all ranks.
SECTION = "lightning_hier"
FORMAT = 1

Part = Literal["rank", "group"]

_log = logging.getLogger(__name__)


class RankFiles:
    """The files of one save.

    Args:
        checkpoint: path of the checkpoint itself.
        save: name of the save.

    """

    def __init__(self, checkpoint: str | Path, save: str) -> None:
        self._all = f"{checkpoint}.ranks"
        self._save = save
        self.folder = f"{self._all}/{save}"

    @classmethod
    def saved_with(cls, checkpoint: str | Path, save: str) -> RankFiles:
        """Those of a checkpoint that is there; where it is a link they may lie beside its target.

        Only who reads follows links: a save replaces a link by a file, with a folder of its own.
        """
        own = cls(checkpoint, save)
        if not os.path.islink(checkpoint) or os.path.isdir(own.folder):
            return own
        return cls(os.path.realpath(checkpoint), save)

    def path(self, part: Part, number: int) -> str:
        """Of the file of a rank or of a group."""
        return f"{self.folder}/{part}_{number:05d}.pt"

    def missing(self, sizes: tuple[int, int]) -> list[str]:
        """The files that should be there and are not, after a save on M groups of P ranks.

        Args:
            sizes: P and M.

        """
        filesystem, _ = url_to_fs(self.folder)
        devices, groups = sizes
        wanted = [self.path("group", group) for group in range(groups)]
        wanted += [self.path("rank", rank) for rank in range(devices * groups)]
        return [path for path in wanted if not filesystem.exists(path)]

    def remove_older(self, keep: int) -> None:
        """Remove what older saves under the same name have left, but for the newest ``keep``."""
        filesystem, folder = url_to_fs(self._all)
        if not filesystem.exists(folder):
            return
        names = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in filesystem.ls(folder, False))
        older = [name for name in names if name < self._save]
        for name in older[: len(older) - keep]:
            _remove(f"{self._all}/{name}")


def remove_rank_files(checkpoint: str | Path) -> None:
    """Remove what all ranks have saved beside a checkpoint; does nothing where there is nothing."""
    _remove(f"{checkpoint}.ranks")


def _remove(folder: str) -> None:
    filesystem, path = url_to_fs(folder)
    # One rank of every host removes, and hosts may share the folder.
    with suppress(FileNotFoundError):
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)


def newest_checkpoint(folder: str | Path) -> str | Path | None:
    """The newest checkpoint in a folder that is complete, to go on from after a fault.

    A checkpoint is complete if it can be read (``weights_only=True``) and the files that ranks have
    written beside it are all there. One that is not is left where it is, with a warning. Every rank
    that sees the folder gets the same answer; no communication::

        trainer.fit(model, ckpt_path=lightning_hier.newest_checkpoint("checkpoints"))

    Args:
        folder: where a ModelCheckpoint keeps its files (``*.ckpt``): a path, or a URL such as
            ``s3://...``, where each rank reads whole checkpoints until one is complete.

    Returns:
        Its path (a URL as ``str``), or None where there is none, so that training starts from the
        beginning.

    Raises:
        ImportError: the URL's kind needs a package that is not installed; names it.

    """
    filesystem, root = url_to_fs(str(folder))
    if not filesystem.isdir(root):
        return None
    paths = [path for path in filesystem.ls(root, detail=False) if path.endswith(".ckpt")]
    dated = [(filesystem.modified(path), path) for path in paths if filesystem.exists(path)]
    for _, path in sorted(dated, reverse=True):
        found = _inside(folder, path.rsplit("/", 1)[-1])
        problem = _incomplete(found)
        if problem is None:
            return found
        _log.warning("the checkpoint %s is incomplete (%s); an older one is used", found, problem)
    return None


def _inside(folder: str | Path, name: str) -> str | Path:
    """As the folder was given, since a Path would make one slash of the two in a URL."""
    is_url = "://" in str(folder)
    return f"{str(folder).rstrip('/')}/{name}" if is_url else Path(folder) / name


def _incomplete(path: str | Path) -> str | None:
    try:
        checkpoint = _read(path)
    except Exception as error:  # whatever torch says of a file that was cut off
        return f"it can't be read: {error}"
    section = checkpoint.get(SECTION) if isinstance(checkpoint, Mapping) else None
    if section is None:
        return None
    missing = RankFiles.saved_with(path, section["save"]).missing(tuple(section["sizes"]))
    return f"{len(missing)} files are missing, among them {missing[0]}" if missing else None


def _read(path: str | Path) -> Any:
    filesystem, place = url_to_fs(str(path))
    if isinstance(filesystem, LocalFileSystem):
        # Tensors stay on the disk: nobody looks at them.
        return torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    with filesystem.open(place, "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def section_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What this package has saved in a checkpoint; None: nothing.

    Raises:
        ValueError: a newer version has saved it.

    """
    section: Mapping[str, Any] | None = checkpoint.get(SECTION)
    if section is not None and section["format"] > FORMAT:
        raise ValueError(
            f"the checkpoint has format {section['format']} of lightning_hier, and this version "
            f"knows formats up to {FORMAT}: update lightning_hier"
        )
    return section
