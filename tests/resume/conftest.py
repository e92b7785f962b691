"""Two checkpoints of two ranks, which tests may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, make_trainer


def _save_twice(folder: Path) -> None:
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = make_trainer(BMUF(), callbacks=[saving], enable_checkpointing=True, max_epochs=2)
    trainer.fit(DropoutNet(width=64), shuffled(5))


@pytest.fixture(scope="package")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_ranks(_save_twice, 2, folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A folder with the checkpoints after 5 and 10 steps of a `DropoutNet` of width 64."""
    return Path(shutil.copytree(saved, tmp_path / "copied"))
