"""Checkpoints of divided modules: folders in the format of Lightning's ModelParallelStrategy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_hier.strategies.private_names import private


def save_folder(checkpoint: dict[str, Any], path: Path, group: dist.ProcessGroup) -> None:
    """Save a checkpoint, each rank its shards. A collective of ``group``.

    The folder gets its name when it is complete, and replaces an older one.

    Args:
        checkpoint: Lightning's checkpoint. Model and optimizers are removed from it.
        path: folder.
        group: ranks that hold the module together.

    """
    # Imported here, because importing it takes long.
    from torch.distributed.checkpoint.state_dict_saver import save

    divided = {"state_dict": checkpoint.pop("state_dict")}
    for index, state in enumerate(checkpoint.pop("optimizer_states", [])):
        divided[f"optimizer_{index}"] = state
    incomplete = path.with_name(f"{path.name}.incomplete")
    save(divided, checkpoint_id=incomplete, process_group=group)
    if dist.get_rank(group) == 0:
        torch.save(checkpoint, metadata_file(incomplete))
        if path.is_dir():
            shutil.rmtree(path)
        incomplete.replace(path)


def metadata_file(folder: str | Path) -> str:
    """The file of a checkpoint's folder with all but model and optimizers."""
    return f"{folder}/{private('lightning.fabric.utilities.load', '_METADATA_FILENAME')}"
