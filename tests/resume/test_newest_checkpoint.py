"""The newest complete checkpoint, wherever the folder is. That it is complete: test_files.py."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import make_trainer


def _at_a_url() -> None:
    folder, store = "memory://saved", fsspec.filesystem("memory")
    assert lh.newest_checkpoint(folder) is None
    trainer = make_trainer("bmuf", max_epochs=1)
    trainer.fit(DropoutNet(), shuffled(5))
    for name in ("a", "b"):
        trainer.save_checkpoint(f"{folder}/{name}.ckpt")
    assert lh.newest_checkpoint(folder) == f"{folder}/b.ckpt"
    store.rm(store.glob("/saved/b.ckpt.ranks/*/rank_00000.pt")[0])
    newest = lh.newest_checkpoint(f"{folder}/")
    assert newest == f"{folder}/a.ckpt"
    resumed = make_trainer("bmuf", max_epochs=2)
    resumed.fit(DropoutNet(), shuffled(5), ckpt_path=newest)
    assert resumed.global_step == 10
    whole = store.cat_file("/saved/a.ckpt")
    store.pipe_file("/saved/a.ckpt", whole[: len(whole) // 2])
    assert lh.newest_checkpoint(folder) is None


def test_newest_checkpoint_at_a_url() -> None:
    """It was always None, and training began anew without a word."""
    run_ranks(_at_a_url, 1)


def test_folder_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AtomicCheckpointIO().save_checkpoint({"optimizer_states": []}, tmp_path / "[1]" / "a.ckpt")
    monkeypatch.chdir(tmp_path)
    assert lh.newest_checkpoint("[1]") == Path("[1]/a.ckpt")
    assert lh.newest_checkpoint("[1]/a.ckpt") is None
    assert lh.newest_checkpoint(f"file://{tmp_path}/[1]") == f"file://{tmp_path}/[1]/a.ckpt"
