"""Checkpoints of Fabric: a file with the global model, and the state of all ranks beside it.

``fabric.save("a.ckpt", state)`` writes the file that Fabric would write without this package, with
the global model in it. The folder ``a.ckpt.ranks/<save>`` has everything of the run, in the format
of ``torch.distributed.checkpoint``. The file is written last and names the folder, so a checkpoint
that can be read is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.loop.blocks import Blocks
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError, missing_beside
from lightning_hier.strategies.checkpoints.rank_files import FORMAT, LOADING, RankFiles

_METADATA = ".metadata"  # torch.distributed.checkpoint writes it last


def save_blocks(blocks: Sequence[Blocks], path: str | Path, device: torch.device) -> RankFiles:
    """Save everything of the run beside the checkpoint ``path``. A collective of the world.

    Args:
        blocks: blocks of each module, in the order in which they were set up.
        path: path of the checkpoint. That of rank 0 is used.
        device: device of collectives.

    """
    files = RankFiles.of_new_save(path, device)
    import torch.distributed.checkpoint as dcp  # not earlier, because it takes long

    dcp.save(_by_name(blocks), checkpoint_id=files.folder)
    return files


def section_of_run(files: RankFiles, blocks: Sequence[Blocks]) -> dict[str, Any]:
    """What the checkpoint says about the folder beside it."""
    return {"format": FORMAT, "save": files.save, "modules": len(blocks)}


def load_blocks(
    blocks: Sequence[Blocks], path: str | Path, section: dict[str, Any], device: torch.device
) -> None:
    """Continue the run whose checkpoint is ``path``. A collective of the world.

    Args:
        blocks: as in :func:`save_blocks`.
        path: path of the checkpoint.
        section: :func:`section_of_run` of the checkpoint.
        device: device of collectives.

    Raises:
        DamagedFileError: on every rank, if the folder is missing on any.
        ValueError: on every rank, if the saved run had another number of modules.

    """
    folder = RankFiles.saved_with(path, section["save"]).folder
    with raise_everywhere(device, place=LOADING):
        if section["modules"] != len(blocks):
            raise ValueError(
                f"the checkpoint {path} has the blocks of {section['modules']} modules, but "
                f"fabric.setup was called for {len(blocks)}: set up the same before fabric.load"
            )
    with raise_everywhere(device, error=DamagedFileError, place=LOADING):
        if problem := missing_beside([f"{folder}/{_METADATA}"]):
            raise DamagedFileError(
                f"the checkpoint {path} is incomplete: {problem}. Its folder must be next to it, "
                "and visible on every host. To start a new run, load its model by torch.load"
            )
    import torch.distributed.checkpoint as dcp

    dcp.load(_by_name(blocks), checkpoint_id=folder)


def _by_name(blocks: Sequence[Blocks]) -> dict[str, Any]:
    return {f"blocks_{number}": each for number, each in enumerate(blocks)}
