"""Checkpoints of divided modules: folders in the format of Lightning's ModelParallelStrategy.

One whole file (``save_distributed_checkpoint=False``) is written as those of other modules are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.loop.pieces import plain_numbers
from lightning_hier.strategies.checkpoints.integrity import filesystem_of, read_mapped
from lightning_hier.strategies.checkpoints.rank_files import REPLACED, RankFiles, section_of

if TYPE_CHECKING:
    from lightning.pytorch.strategies import ParallelStrategy


def save_folder(checkpoint: dict[str, Any], path: Path, group: dist.ProcessGroup) -> None:
    """Save a checkpoint, each rank its shards. A collective of ``group``.

    The folder gets its name when it is complete, and replaces an older folder. If the process is
    killed, :func:`on_every_host` finds the older or the new one.

    Args:
        checkpoint: Lightning's checkpoint.
        path: folder.
        group: ranks that hold the module together.

    """
    # Imported here, because importing it takes long.
    from torch.distributed.checkpoint.state_dict_saver import save

    checkpoint = dict(plain_numbers(checkpoint))
    divided = {"state_dict": checkpoint.pop("state_dict")}
    for index, state in enumerate(checkpoint.pop("optimizer_states", [])):
        divided[f"optimizer_{index}"] = state
    # Always the same name, so that the next save overwrites what a killed one has left.
    incomplete = path.with_name(f"{path.name}.incomplete")
    save(divided, checkpoint_id=incomplete, process_group=group)
    if dist.get_rank(group) == 0:
        torch.save(checkpoint, metadata_file(incomplete))
        # A second time, because the user may have written there while the model was saved.
        check_replaceable(path, by_folder=True)
        with _replacing(path):
            incomplete.replace(path)


@contextmanager
def _replacing(path: Path) -> Iterator[None]:
    """Rename an older checkpoint, and remove it after the body has written the new one.

    No file system replaces a folder with files by a single call. Without an older checkpoint, one
    that an interrupted save has renamed stays until then.
    """
    older = _renamed(path)
    if path.exists():  # otherwise `older` may be the only complete checkpoint
        _remove(older)
        path.replace(older)
    yield
    _remove(older)


def _renamed(path: Path) -> Path:
    return path.with_name(path.name + REPLACED)


@contextmanager
def on_every_host(path: str | Path, strategy: ParallelStrategy) -> Iterator[Path]:
    """The checkpoint at ``path``, or the older one that an interrupted save was to replace.

    A file at a URL is copied to every host while the body runs, because Lightning's loader of
    divided modules maps local files into memory. A collective of the world, as is the body.
    """
    filesystem, place = filesystem_of(path)
    if isinstance(filesystem, LocalFileSystem) or filesystem.isdir(place):
        local = local_path(path)
        older = _renamed(local)
        yield older if older.exists() and not local.exists() else local
        return
    # The path of rank 0, because Lightning takes it on all ranks.
    copy = Path(strategy.broadcast(f"{gettempdir()}/{uuid4().hex}.ckpt"))
    try:
        with raise_everywhere(strategy.root_device, error=OSError):
            if strategy.local_rank == 0:
                filesystem.get_file(place, str(copy))
        yield copy
        strategy.barrier("the loading of a checkpoint")
    finally:
        copy.unlink(missing_ok=True)


def saved_optimizers(path: Path, *, weights_only: bool) -> Sequence[Mapping[str, Any]] | None:
    """States of the optimizers in a checkpoint, or None if it does not show them.

    A folder has their settings in many pieces, and the file of the first rank beside it as a whole.
    """
    states: Sequence[Mapping[str, Any]] | None = None
    with suppress(Exception):  # the load that follows describes what is wrong with a file
        checkpoint = read_mapped(metadata_file(path) if path.is_dir() else path, weights_only)
        section, states = section_of(checkpoint), checkpoint.get("optimizer_states")
        if states is None and section is not None:
            first = RankFiles.saved_with(path, section["save"]).path(0)
            states = read_mapped(first, weights_only)["local_model"]["optimizers"]
    return states


def check_replaceable(path: str | Path, *, by_folder: bool) -> None:
    """Raise FileExistsError unless ``path`` is free or a checkpoint of the same format."""
    filesystem, place = filesystem_of(path)
    if not filesystem.exists(place):
        return
    if by_folder and filesystem.isdir(place):
        if filesystem.isfile(metadata_file(place)) or not filesystem.ls(place):
            return
        found = "a directory without a checkpoint"
    elif filesystem.isdir(place):
        found = "a directory, and save_distributed_checkpoint=False saves a file"
    elif by_folder:
        found = "a file, and save_distributed_checkpoint=True saves a folder"
    else:
        return
    raise FileExistsError(f"{path} is {found}: save to another path, or move it")


def _remove(path: Path) -> None:
    """Remove a folder, or a link to one, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def local_path(path: str | Path) -> Path:
    """The local path of a folder.

    Raises:
        ValueError: it is in a remote store.

    """
    filesystem, place = filesystem_of(path)
    if not isinstance(filesystem, LocalFileSystem):
        raise ValueError(
            "the checkpoint of a divided module is a folder, which must be in a local or mounted "
            f"directory, where renaming makes it complete or absent, got {path}: save or copy it "
            "there, or set save_distributed_checkpoint=False, with which rank 0 saves one file"
        )
    return Path(place)


def metadata_file(folder: str | Path) -> str:
    """The file of a checkpoint's folder with all but model and optimizers."""
    return f"{folder}/meta.pt"
