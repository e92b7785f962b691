"""Saves that a thread writes: complete in the end."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import make_trainer

BMUF = partial(lh.BMUFStrategy, block_size=4)


def _fit(folder: Path, io: Any, **settings: Any) -> None:
    trainer = make_trainer(
        BMUF(),
        callbacks=[ModelCheckpoint(folder, **settings)],
        enable_checkpointing=True,
        max_epochs=2,
        plugins=io,
    )
    trainer.fit(DropoutNet(), shuffled(5))


def _asynchronous(folder: Path) -> None:
    _fit(folder, AsyncCheckpointIO(), every_n_train_steps=2, save_last=True)


class _Slow(AtomicCheckpointIO):
    """Takes its time for what rank 1 saves, as a disk that others use."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        if "rank_00001" in str(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            time.sleep(0.3)
        super().save_checkpoint(checkpoint, path, storage_options)


def _slow(folder: Path) -> None:
    _fit(folder, AsyncCheckpointIO(_Slow()), every_n_train_steps=1, save_last=True)


def test_a_slow_writer_finds_its_folder(tmp_path: Path) -> None:
    """An older save was removed while a rank still wrote its part of it."""
    run_ranks(_slow, 2, tmp_path)
    assert lh.newest_checkpoint(tmp_path) is not None
    assert len(list(tmp_path.rglob("rank_00001.pt"))) == len(list(tmp_path.rglob("rank_00000.pt")))


def test_asynchronous_saves_are_complete_in_the_end(tmp_path: Path) -> None:
    run_ranks(_asynchronous, 2, tmp_path)
    for name in ("epoch=1-step=10.ckpt", "last.ckpt"):
        saved = torch.load(tmp_path / name, weights_only=True)["lightning_hier"]
        folder = tmp_path / f"{name}.ranks" / saved["save"]
        assert len(list(folder.iterdir())) == 4
    assert lh.newest_checkpoint(tmp_path) is not None
