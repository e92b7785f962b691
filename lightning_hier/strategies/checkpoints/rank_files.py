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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

# Key of a checkpoint for the small state of this package that is the same on all ranks.
SECTION = "lightning_hier"
FORMAT = 1

ABANDONED_AFTER = timedelta(hours=1)
"""What belongs to an unfinished save, and nobody has written to for so long, has no writer."""

Part = Literal["rank", "group"]
State = dict[str, Any]

_log = logging.getLogger(__name__)


class RankFiles:
    """The files of one save.

    Args:
        checkpoint: path of the checkpoint itself.
        save: name of the save.

    """

    def __init__(self, checkpoint: str | Path, save: str) -> None:
        self._save = save
        self.of_all_saves = f"{checkpoint}.ranks"
        self.folder = f"{self.of_all_saves}/{save}"

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

    def paths(self, sizes: tuple[int, int]) -> list[str]:
        """All of them, after a save on M groups of P ranks.

        Args:
            sizes: P and M.

        """
        devices, groups = sizes
        of_groups = [self.path("group", group) for group in range(groups)]
        return of_groups + [self.path("rank", rank) for rank in range(devices * groups)]

    def missing(self, sizes: tuple[int, int]) -> list[str]:
        """Those that should be there and are not."""
        filesystem, _ = url_to_fs(self.folder)
        return [path for path in self.paths(sizes) if not filesystem.exists(path)]

    def remove(self) -> None:
        """Remove them, and the folder of all saves if no other is in it."""
        remove_folder(self.folder)
        filesystem, folder = url_to_fs(self.of_all_saves)
        if isinstance(filesystem, LocalFileSystem):  # object stores have no empty folders
            with suppress(OSError):
                os.rmdir(folder)

    def remove_abandoned(self) -> None:
        """Remove other saves of this name, written an hour or more before this one.

        To be called when the checkpoint names this save or a newer one, so nobody needs the
        others; but another job that saves under the same name may be writing one. That they can't
        be listed is a warning, and a later save removes them.
        """
        try:
            for name in self._abandoned():
                remove_folder(f"{self.of_all_saves}/{name}")
        except FileNotFoundError:
            pass  # another job has removed one meanwhile
        except Exception as error:  # fsspec's file systems have errors of their own
            _log.warning("old saves in %s could not be listed: %s", self.of_all_saves, error)

    def _abandoned(self) -> list[str]:
        filesystem, folder = url_to_fs(self.of_all_saves)
        last_write = {
            path.rstrip("/").rsplit("/", 1)[-1]: _last_write(filesystem, path)
            for path in filesystem.ls(folder, detail=False)
        }
        if self._save not in last_write:  # a network's file system may show it later
            return []
        now = last_write[self._save]  # by the clock of the file system
        return [name for name, written in last_write.items() if now - written > ABANDONED_AFTER]


def _last_write(filesystem: Any, folder: str) -> datetime:
    """When a file below a folder was written last."""
    written: list[datetime] = [
        filesystem.modified(path) for path in filesystem.find(folder) or [folder]
    ]
    return max(written)


def remove_folder(folder: str) -> None:
    """Remove a folder; that it could not be removed is a warning, since nobody needs it."""
    filesystem, path = url_to_fs(folder)
    try:
        # One rank of every host removes, and hosts may share the folder.
        with suppress(FileNotFoundError):
            if filesystem.exists(path):
                filesystem.rm(path, recursive=True)
    except Exception as error:  # fsspec's file systems have errors of their own
        _log.warning("%s is no longer needed and could not be removed: %s", folder, error)


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
