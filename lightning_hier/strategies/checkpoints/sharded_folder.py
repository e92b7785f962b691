"""Checkpoints of divided modules: folders in the format of Lightning's ModelParallelStrategy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_hier.strategies.checkpoints.rank_files import REPLACED


def save_folder(checkpoint: dict[str, Any], path: Path, group: dist.ProcessGroup) -> None:
    """Save a checkpoint, each rank its shards. A collective of ``group``.

    The folder gets its name when it is complete, and replaces an older folder. If the process is
    killed, :func:`existing` finds the older or the new one.

    Args:
        checkpoint: Lightning's checkpoint. Its tensors are removed from it.
        path: folder.
        group: ranks that hold the module together.

    """
    # Imported here, because importing it takes long.
    from torch.distributed.checkpoint.state_dict_saver import save

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


def existing(path: str | Path) -> str | Path:
    """The checkpoint at ``path``, or the older one that an interrupted save was to replace."""
    older = _renamed(Path(path))
    return older if older.exists() and not Path(path).exists() else path


def check_replaceable(path: Path, *, by_folder: bool) -> None:
    """Raise FileExistsError unless ``path`` is free or a checkpoint of the same format."""
    if not path.exists():
        return
    if by_folder and path.is_dir():
        if Path(metadata_file(path)).is_file() or not any(path.iterdir()):
            return
        found = "a directory without a checkpoint"
    elif path.is_dir():
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


def local_path(path: str) -> Path:
    """The path of a checkpoint.

    Raises:
        ValueError: it is a URL. torch would save to a local directory of that name.

    """
    if "://" in path:
        raise ValueError(
            f"a divided module is saved to local or mounted directories, got {path}: save there, "
            "and copy the checkpoint"
        )
    return Path(path)


def metadata_file(folder: str | Path) -> str:
    """The file of a checkpoint's folder with all but model and optimizers."""
    return f"{folder}/meta.pt"
