"""Files with the state of ranks next to a checkpoint.

Next to ``name.ckpt`` is a directory ``name.ckpt.ranks`` with one directory for the save of
``name.ckpt``: ``rank_00003.pt`` contains the state of rank 3. ``name.ckpt`` is written last and
names the save, so a checkpoint is complete if it can be read and all files that it names exist.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fsspec.implementations.local import LocalFileSystem

from lightning_hier.comm.agreement import gather_json
from lightning_hier.strategies.checkpoints.integrity import filesystem_of

# Key in a checkpoint of the state of this package that is equal on all ranks.
SECTION = "lightning_hier"
FORMAT = 1

REPLACED = ".replaced"
"""End of the name of a checkpoint while another one of its name replaces it."""

SAVING, LOADING = "a save of a checkpoint", "loading of a checkpoint"
"""Names of the exchanges of ranks in errors."""

State = dict[str, Any]

_log = logging.getLogger(__name__)


class RankFiles:
    """The files of one save.

    Args:
        checkpoint: path of the checkpoint itself.
        save: name of the save.

    Attributes:
        checkpoint, save: see above.
        folder: directory of the save.
        of_all_saves: directory of all saves of this checkpoint.

    """

    def __init__(self, checkpoint: str | Path, save: str) -> None:
        self.checkpoint, self.save = str(checkpoint), save
        self.of_all_saves = f"{checkpoint}.ranks"
        self.folder = f"{self.of_all_saves}/{save}"

    @classmethod
    def of_new_save(cls, checkpoint: str | Path, device: torch.device) -> RankFiles:
        """Files of a new save. A collective of the world.

        Args:
            checkpoint: path of the checkpoint. That of rank 0 is used, because a name that contains
                a metric may differ between ranks.
            device: device of collectives.

        """
        # The time distinguishes this save from earlier ones of the same name.
        proposed = [str(checkpoint), f"{time.time_ns():020d}"]
        return cls(*gather_json(proposed, device, place=SAVING)[0])

    @classmethod
    def saved_with(cls, checkpoint: str | Path, save: str) -> RankFiles:
        """Files of an existing checkpoint. For a link, they may be next to its target.

        They are also found if an interrupted save has left the checkpoint under another name. Only
        reading follows links. A save replaces a link by a file with its own directory.
        """
        beside = cls(str(checkpoint).removesuffix(REPLACED), save)
        if not os.path.islink(checkpoint) or os.path.isdir(beside.folder):
            return beside
        return cls(os.path.realpath(checkpoint), save)

    def path(self, rank: int) -> str:
        """Path of the file of a rank."""
        return f"{self.folder}/rank_{rank:05d}.pt"

    def paths(self, ranks: int) -> list[str]:
        """All files of a save of so many ranks."""
        return [self.path(rank) for rank in range(ranks)]

    def remove(self) -> None:
        """Remove the files, and the directory of all saves if it is empty."""
        remove_folder(self.folder)
        filesystem, folder = filesystem_of(self.of_all_saves)
        if isinstance(filesystem, LocalFileSystem):  # object stores have no empty directories
            with suppress(OSError):
                os.rmdir(folder)

    def remove_others(self, kept: RankFiles | None) -> None:
        """Remove all other saves of this name, also those that were killed.

        Call it when the checkpoint names this save or ``kept``. If the saves cannot be listed,
        there is a warning, and a later save removes them.

        Args:
            kept: another save that is kept, if there is one.

        """
        filesystem, folder = filesystem_of(self.of_all_saves)
        try:
            names = [path.rstrip("/").rsplit("/", 1)[-1] for path in filesystem.ls(folder, False)]
        except Exception as error:  # file systems of fsspec raise errors of other types
            _log.warning("old saves in %s could not be listed: %s", self.of_all_saves, error)
            return
        for name in names:
            if name not in (self.save, kept and kept.save):
                remove_folder(f"{self.of_all_saves}/{name}")


def remove_folder(folder: str) -> None:
    """Remove a directory. A failure is a warning, because it is no longer needed."""
    filesystem, path = filesystem_of(folder)
    try:
        # One rank of every host removes files, and hosts may share the directory.
        with suppress(FileNotFoundError):
            if filesystem.exists(path):
                filesystem.rm(path, recursive=True)
    except Exception as error:  # file systems of fsspec raise errors of other types
        _log.warning("%s is no longer needed and could not be removed: %s", folder, error)


# Entries without which no run resumes. RunState.shared has all but the first three.
_ENTRIES = {
    "format": int,
    "save": str,
    "sizes": list,
    "steps": list,
    "loops": dict,
    "kinds": dict,
    "trainable": list,
    "frozen": list,
    "frozen_at_first": list,
    "kept_equal": list,
    "automatic_values": dict,
}


def section_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The section of this package in a checkpoint, or None.

    Raises:
        ValueError: a newer version has saved it, or it is damaged.

    """
    section: Any = checkpoint.get(SECTION)
    if section is None:
        return None
    found = section if isinstance(section, dict) else {}
    if isinstance(found.get("format"), int) and found["format"] > FORMAT:
        raise ValueError(
            f"the checkpoint has format {found['format']} of lightning_hier, but this version "
            f"supports formats up to {FORMAT}: update lightning_hier"
        )
    damaged = [name for name, kind in _ENTRIES.items() if not isinstance(found.get(name), kind)]
    if damaged:
        raise ValueError(
            f"the section {SECTION!r} of the checkpoint is damaged, at {', '.join(damaged)}: "
            "resume from another checkpoint, or start a new run from its weights with "
            "load_from_checkpoint"
        )
    return found
