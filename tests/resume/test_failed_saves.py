"""Tests that a failed save is one error on every rank, and that a save hides no other error.

Files that are no longer needed and cannot be listed or removed end no run.
"""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

import lightning_hier as lh
from lightning_hier.strategies.checkpoints import rank_files
from tests.ranks import rank_outcomes, run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, make_trainer


def _full_disk(folder: Path) -> None:
    """Save twice. In the second save, rank 1 cannot write."""
    trainer = make_trainer(BMUF(), max_epochs=1)
    trainer.fit(DropoutNet(), shuffled(5))
    trainer.save_checkpoint(folder / "a.ckpt")
    if os.environ["RANK"] == "1":
        trainer.strategy.checkpoint_io.save_checkpoint = _refuse  # type: ignore[method-assign]
    trainer.save_checkpoint(folder / "a.ckpt")


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise OSError("no space left on device")


def test_rank_that_can_not_write_is_an_error_on_every_rank(tmp_path: Path) -> None:
    """The older checkpoint of the same name stays complete."""
    for outcome in rank_outcomes(_full_disk, 2, tmp_path):
        assert outcome.error == "OSError: no space left on device"
    assert lh.newest_checkpoint(tmp_path) == tmp_path / "a.ckpt"


class _Unpicklable(DropoutNet):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = lambda: None


def _save_unpicklable(folder: Path) -> None:
    trainer = make_trainer(BMUF(), max_epochs=1)
    trainer.fit(_Unpicklable(), shuffled(5))
    trainer.save_checkpoint(folder / "a.ckpt")


def test_state_that_can_not_be_pickled_is_an_error_on_every_rank(tmp_path: Path) -> None:
    first, second = run_ranks(_save_unpicklable, 2, tmp_path, expect_failure=True)
    assert first == second
    assert first.startswith("OSError: the checkpoint could not be written: ")
    assert "lambda" in first


class _FailsInAStep(DropoutNet):
    def on_after_backward(self) -> None:
        raise ZeroDivisionError("of the user")


def _fail_with_saver(folder: Path) -> None:
    saver = OnExceptionCheckpoint(folder)
    trainer = make_trainer(BMUF(), callbacks=[saver], enable_checkpointing=True)
    trainer.fit(_FailsInAStep(), shuffled(5))


def test_error_within_a_step_is_not_hidden_by_a_save(tmp_path: Path) -> None:
    errors = run_ranks(_fail_with_saver, 2, tmp_path, expect_failure=True)
    assert errors == ["ZeroDivisionError: of the user"] * 2


def _trained(width: int = 8, **settings: Any) -> Any:
    trainer = make_trainer(BMUF(), max_epochs=1, **settings)
    trainer.fit(DropoutNet(width=width), shuffled(5))
    return trainer


def _stale(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ESTALE, "stale file handle")


def _save_over_a_killed_save(path: Path, listed: bool) -> tuple[list[str], str]:
    killed = Path(f"{path}.ranks") / "00000000000000000001" / "rank_00000.pt"
    killed.parent.mkdir(parents=True)
    killed.touch()
    trainer = _trained()
    listing = nullcontext() if listed else patch.object(os, "scandir", _stale)
    with listing, patch.object(rank_files._log, "warning") as warning:
        trainer.save_checkpoint(path)
    return sorted(os.listdir(f"{path}.ranks")), str(warning.call_args_list)


@pytest.mark.parametrize("listed", [True, False])
def test_a_save_removes_killed_ones(listed: bool, tmp_path: Path) -> None:
    """An error of the file system is a warning: other ranks would wait in the next collective."""
    path = tmp_path / "last.ckpt"
    ((left, warnings),) = run_ranks(_save_over_a_killed_save, 1, path, listed)
    assert len(left) == (1 if listed else 2)
    assert ("stale file handle" in warnings) != listed
    assert lh.newest_checkpoint(tmp_path) == path


def _can_not_remove(folder: Path) -> list[str]:
    """Train while rank 0 cannot remove files, as on a network file system."""
    if os.environ["RANK"] == "0":
        LocalFileSystem.rm = _denied
        LocalFileSystem.rm_file = _denied
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=2)
    _trained(callbacks=[saving], enable_checkpointing=True)
    return sorted(path.name for path in folder.glob("*.ckpt"))


def _denied(*args: Any, **kwargs: Any) -> None:
    raise PermissionError("stale file handle")


def test_file_that_can_not_be_removed_ends_no_run(tmp_path: Path) -> None:
    left = run_ranks(_can_not_remove, 2, tmp_path)
    assert left == [["step=2.ckpt", "step=4.ckpt"]] * 2
    assert lh.newest_checkpoint(tmp_path) == tmp_path / "step=4.ckpt"
