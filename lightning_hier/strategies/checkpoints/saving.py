"""Saves the state of all ranks beside a checkpoint, in an order that never leaves half of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.strategies.checkpoints.rank_files import FORMAT, SECTION, Part, RankFiles

_SAVE = "a save of a checkpoint"


def save_run(
    checkpoint: dict[str, Any],
    path: str | Path,
    *,
    shared: dict[str, Any],
    states: Iterable[tuple[Part, int, dict[str, Any]]],
    layout: RankLayout,
    removes: bool,
    io: CheckpointIO,
    write: Callable[[dict[str, Any]], None],
    device: torch.device,
) -> RankFiles:
    """Save the state of every rank, and then the checkpoint that names it.

    A collective of the world: every rank must call it.

    Args:
        checkpoint: what Lightning saves; gets this package's section.
        path: of the checkpoint. That of rank 0 counts: a name with a metric that is not the same on
            all ranks differs from rank to rank.
        shared: the small state that is the same on all ranks.
        states: of this rank: one for each of its workers, and one for each group whose first
            worker it has.
        layout: workers and groups.
        removes: whether this rank removes what a save has left that failed.
        io: writes files.
        write: writes the checkpoint itself, on rank 0.
        device: of collectives.

    Returns:
        The files that were saved beside the checkpoint.

    Raises:
        OSError: on every rank, if any rank could not write. Partial files have been removed.

    """
    devices, groups = layout.sizes
    finish_writing(io)
    own = [f"{time.time_ns():020d}", str(path)]
    save, common = gather_json(own, device, place=_SAVE)[0]
    files = RankFiles(common, save)
    try:
        with raise_everywhere(device, error=OSError, place=_SAVE):
            _write_all(states, files, io)
        checkpoint[SECTION] = {"format": FORMAT, "save": save, "sizes": [devices, groups], **shared}
        write_everywhere(lambda: write(checkpoint), device)
    except OSError:
        if removes:
            files.remove()
        raise
    return files


def write_everywhere(write: Callable[[], None], device: torch.device) -> None:
    """Write on the ranks that do, and have all know whether it was done.

    A collective of the world: every rank must call it.

    Raises:
        OSError: on every rank, if any rank could not write.

    """
    with raise_everywhere(device, error=OSError, place=_SAVE):
        _write(write)


def finish_writing(io: CheckpointIO) -> None:
    """Wait until this rank has written all its saves so far.

    Before a save: once all ranks have, an older save may be removed, since nobody writes into its
    folder any more. It also bounds the copies that wait to be written, to those of one save.
    """
    executor = io._executor if isinstance(io, AsyncCheckpointIO) else None
    if executor is not None:
        executor.submit(lambda: None).result()  # it writes one file after the other


def _write_all(
    states: Iterable[tuple[Part, int, dict[str, Any]]], files: RankFiles, io: CheckpointIO
) -> None:
    failed = None
    # To the end in any case: each worker has its model in the module while its state is read.
    for part, number, state in states:
        try:
            _write(partial(io.save_checkpoint, state, files.path(part, number)))
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _write(write: Callable[[], None]) -> None:
    try:
        write()
    except OSError:
        raise
    except Exception as error:  # of pickle, about values of a callback
        raise OSError(
            f"the checkpoint could not be written: {type(error).__name__}: {error}"
        ) from error
