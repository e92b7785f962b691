"""Checkpoints of divided modules: folders in the format of Lightning's ModelParallelStrategy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightning_hier.strategies.checkpoints.rank_files import SECTION
from lightning_hier.strategies.checkpoints.sharded_outer_state import outer_tensors
from lightning_hier.strategies.private_names import private

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


def save_folder(
    checkpoint: dict[str, Any],
    path: Path,
    group: dist.ProcessGroup,
    session: FitSession | None,
) -> None:
    """Save a checkpoint, each rank its shards. A collective of ``group``.

    The folder gets its name when it is complete, and replaces an older one.

    Args:
        checkpoint: Lightning's checkpoint. Its tensors are removed from it.
        path: folder.
        group: ranks that hold the module together.
        session: session of the run. If the checkpoint has the state of its ranks, the folder gets
            that of outer steps, which Lightning does not read.

    """
    # Imported here, because importing it takes long.
    from torch.distributed.checkpoint.state_dict_saver import save

    divided = {"state_dict": checkpoint.pop("state_dict")}
    for index, state in enumerate(checkpoint.pop("optimizer_states", [])):
        divided[f"optimizer_{index}"] = state
    if session is not None and SECTION in checkpoint:
        blocks, names = session.synchroniser.blocks or (), session.state.names
        outer, checkpoint[SECTION]["outer_states"] = outer_tensors(blocks, names)
        divided |= outer
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
