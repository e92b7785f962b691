"""Tests checkpoint files: atomic writes, the check for completeness, and complete removal."""

from __future__ import annotations

import itertools
import resource
import signal
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, fit_on_ranks, make_trainer, this_rank, weights


def test_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    """The kernel limits the file size, which fails as a full disk does."""
    path = tmp_path / "one.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint({"value": 1}, path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="one.ckpt could not be written"):
            io.save_checkpoint({"value": torch.zeros(1_000_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert io.load_checkpoint(path, weights_only=True) == {"value": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["one.ckpt"]


def _write_for_ever(path: Path) -> None:
    for value in itertools.count():
        ballast = torch.zeros(2_000_000)
        AtomicCheckpointIO().save_checkpoint({"value": value, "ballast": ballast}, path)


def test_killed_while_writing(tmp_path: Path) -> None:
    """A process replaces one file again and again. After each kill, the file is complete."""
    path = tmp_path / "one.ckpt"
    io = AtomicCheckpointIO()
    fork = get_context("forkserver")
    for kill in range(2):
        writer = fork.Process(target=_write_for_ever, args=(path,), daemon=True)
        writer.start()
        seen: set[int] = set()
        while len(seen) < 3:  # then the process is in the middle of a write
            if path.exists():
                seen.add(io.load_checkpoint(path, weights_only=True)["value"])
            assert writer.is_alive()
            time.sleep(0.001 * (kill + 1))
        writer.kill()
        writer.join()
        assert io.load_checkpoint(path, weights_only=True)["ballast"].shape == (2_000_000,)
    io.save_checkpoint({"value": 0}, path)  # overwrites what the killed process has left
    assert [file.name for file in tmp_path.iterdir()] == ["one.ckpt"]


def _model_checkpoint(folder: Path, **settings: Any) -> list[str]:
    callback = ModelCheckpoint(folder, **settings)
    trainer = make_trainer(BMUF(), callbacks=[callback], enable_checkpointing=True, max_epochs=2)
    trainer.fit(DropoutNet(), shuffled(5))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _names(*checkpoints: str) -> set[str]:
    parts = ["rank_00000.pt", "rank_00001.pt"]
    return {file for name in checkpoints for file in (name, *(f"{name}.ranks/{p}" for p in parts))}


def _without_saves(files: list[str]) -> list[str]:
    """Paths without the folder of the save, whose name is random."""
    return [file if "/" not in file else "/".join(file.split("/")[::2]) for file in files]


def test_model_checkpoint_keeps_only_the_expected_files(tmp_path: Path) -> None:
    """The files of ranks are removed with their checkpoint."""
    for files in run_ranks(_model_checkpoint, 2, tmp_path, every_n_train_steps=2, save_last=True):
        assert sorted(_without_saves(files)) == sorted(_names("epoch=1-step=10.ckpt", "last.ckpt"))


def test_link_to_the_last_one(tmp_path: Path) -> None:
    run_ranks(_model_checkpoint, 2, tmp_path, every_n_epochs=1, save_last="link")
    newest = lh.newest_checkpoint(tmp_path)
    assert newest is not None
    assert (tmp_path / "last.ckpt").resolve() == newest.resolve()


class _Logging(DropoutNet):
    """Logs a value that differs between ranks."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.log("own", float(this_rank()) + batch_idx)
        return super().training_step(batch, batch_idx)


def _named_by_a_metric(folder: Path) -> None:
    saver = ModelCheckpoint(folder, "{step}-{own:.1f}", every_n_train_steps=2)
    trainer = make_trainer(BMUF(), callbacks=[saver], enable_checkpointing=True, max_epochs=1)
    trainer.fit(_Logging(), shuffled(5))


def test_name_with_a_metric_of_each_rank(tmp_path: Path) -> None:
    """All ranks use the name of rank 0, for saves and removals."""
    run_ranks(_named_by_a_metric, 2, tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert set(_without_saves(sorted(files))) == _names("step=4-own=3.0.ckpt")
    assert lh.newest_checkpoint(tmp_path) == tmp_path / "step=4-own=3.0.ckpt"


def test_loads_without_this_package(copied: Path) -> None:
    """The checkpoint loads in plain torch, in plain Lightning, and under Lightning's DDP."""
    path, net = copied / "step=5.ckpt", partial(DropoutNet, width=64)
    plain = net()
    plain.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    loaded = DropoutNet.load_from_checkpoint(path, width=64)
    assert torch.equal(weights(plain), weights(loaded))
    settings = {"data": partial(shuffled, 5), "max_epochs": 2, "ckpt_path": path}
    resumed = fit_on_ranks(2, "ddp", net, **settings)[0]
    assert not torch.equal(weights(plain), resumed.weights)
    assert resumed.steps == 10
