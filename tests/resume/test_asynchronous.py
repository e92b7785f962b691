"""Tests asynchronous saves: complete at the end, and no file is removed too early."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, make_trainer


def _fit(folder: Path, io: Any, **settings: Any) -> None:
    trainer = make_trainer(
        BMUF(),
        callbacks=[ModelCheckpoint(folder, **settings)],
        enable_checkpointing=True,
        max_epochs=2,
        plugins=io,
    )
    trainer.fit(DropoutNet(), shuffled(5))


class _Slow(AtomicCheckpointIO):
    """Writes the file of rank 1 slowly, as a busy disk does."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        if "rank_00001" in str(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            time.sleep(0.1)
        super().save_checkpoint(checkpoint, path, storage_options)


def _slow(folder: Path) -> None:
    _fit(folder, AsyncCheckpointIO(_Slow()), every_n_train_steps=2, save_last=True)


def test_saves_are_complete_in_the_end(tmp_path: Path) -> None:
    """An older save is not removed while a rank still writes its file."""
    run_ranks(_slow, 2, tmp_path)
    assert len(list(tmp_path.rglob("rank_00001.pt"))) == len(list(tmp_path.rglob("rank_00000.pt")))
    for name in ("epoch=1-step=10.ckpt", "last.ckpt"):
        saved = torch.load(tmp_path / name, weights_only=True)["lightning_hier"]
        folder = tmp_path / f"{name}.ranks" / saved["save"]
        assert len(list(folder.iterdir())) == 2
    assert lh.newest_checkpoint(tmp_path) is not None


class _Watching(AtomicCheckpointIO):
    """Notes the newest checkpoint before it writes the next one, as after a kill at that moment."""

    def __init__(self) -> None:
        self.newest: list[Any] = []

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        if ".ranks" not in str(path):
            time.sleep(0.5)  # until the training thread has removed all that it removes
            self.newest.append(lh.newest_checkpoint(Path(path).parent))
        super().save_checkpoint(checkpoint, path, storage_options)


def _save_over(path: Path, saves: int) -> list[Any]:
    """Save over a checkpoint of an earlier job, beside a save that was killed."""
    names = {"filename": path.stem, "enable_version_counter": False}
    _fit(path.parent, AtomicCheckpointIO(), every_n_train_steps=10, **names)
    killed = Path(f"{path}.ranks") / "00000000000000000001" / "rank_00000.pt"
    killed.parent.mkdir()
    killed.touch()
    watching = _Watching()
    _fit(path.parent, AsyncCheckpointIO(watching), every_n_train_steps=10 // saves, **names)
    return [*watching.newest, killed.exists()]


@pytest.mark.parametrize("saves", [1, 2])
def test_older_save_stays_until_the_newer_one_is_written(saves: int, tmp_path: Path) -> None:
    """The save that the checkpoint names, perhaps of an earlier job, is not removed before."""
    path = tmp_path / "a.ckpt"
    ((*newest, killed_is_left),) = run_ranks(_save_over, 1, path, saves)
    assert newest == [path] * saves
    assert killed_is_left == (saves == 1)
