"""Tests saves under a name of another job, on a full disk, and with files that can't be removed."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from lightning_hier.strategies.checkpoints import rank_files
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, make_trainer
from tests.waiting import leave_mark, wait_for_marks


def _trained(width: int = 8, **settings: Any) -> Any:
    trainer = make_trainer(BMUF(), max_epochs=1, **settings)
    trainer.fit(DropoutNet(width=width), shuffled(5))
    return trainer


def _saves(job: str, path: Path, saves: int) -> None:
    trainer = _trained()
    leave_mark(path.parent, job)
    wait_for_marks(path.parent, "a", "b")
    for _ in range(saves):
        trainer.save_checkpoint(path)


def test_two_jobs_save_under_one_name(tmp_path: Path) -> None:
    """Neither job may remove files that the other job writes."""
    path = tmp_path / "last.ckpt"
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(run_ranks, _saves, 1, name, path, 15) for name in "ab"]:
            job.result()
    assert lh.newest_checkpoint(tmp_path) == path
    assert len(list(tmp_path.glob("last.ckpt.ranks/*"))) <= 2  # the last save of each job
    assert not list(tmp_path.glob(".*"))


ABANDONED, IN_PROGRESS = "99999999999999999999", "00000000000000000001"


def _leave_saves(path: Path) -> Path:
    """Create two saves of another job under this name. One of them may still be in progress."""
    folder = path.parent / f"{path.name}.ranks"
    for name, age in ((ABANDONED, 4000), (IN_PROGRESS, 60)):
        file = folder / name / "rank_00000.pt"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    return folder


def _saves_over(path: Path) -> list[str]:
    folder = _leave_saves(path)
    trainer = _trained()
    for _ in range(2):
        trainer.save_checkpoint(path)
    return sorted(save.name for save in folder.iterdir())


def test_abandoned_saves_are_removed(tmp_path: Path) -> None:
    """Their age decides, not their names. Names come from clocks, which may be set back."""
    (left,) = run_ranks(_saves_over, 1, tmp_path / "last.ckpt")
    assert len(left) == 2
    assert left[0] == IN_PROGRESS
    assert ABANDONED not in left
    assert lh.newest_checkpoint(tmp_path) is not None


def _stale(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ESTALE, "stale file handle")


def _list_old(*args: Any, **kwargs: Any) -> list[Any]:
    """List only old files, as an NFS client that does not see new files of other hosts yet."""
    listed = LIST(*args, **kwargs)
    return [path for path in listed if str(path).endswith((ABANDONED, IN_PROGRESS))]


LIST = LocalFileSystem.ls
FAILURES: dict[str, tuple[Any, str, Any]] = {
    "modified": (LocalFileSystem, "modified", _stale),
    "listed": (os, "scandir", _stale),
    "outdated": (LocalFileSystem, "ls", _list_old),
}


def _save_meanwhile(path: Path, failure: str) -> tuple[list[str], str]:
    folder = _leave_saves(path)
    trainer = _trained()
    with patch.object(*FAILURES[failure]), patch.object(rank_files._log, "warning") as warning:
        trainer.save_checkpoint(path)
    return sorted(save.name for save in folder.iterdir()), str(warning.call_args_list)


@pytest.mark.parametrize("failure", FAILURES)
def test_listing_that_fails_ends_no_run(failure: str, tmp_path: Path) -> None:
    """An OSError or KeyError on one rank would leave the others in the next collective."""
    path = tmp_path / "last.ckpt"
    ((left, warnings),) = run_ranks(_save_meanwhile, 1, path, failure)
    assert len(left) == 3
    assert {ABANDONED, IN_PROGRESS} < set(left)
    assert ("stale file handle" in warnings) == (failure != "outdated")
    assert lh.newest_checkpoint(tmp_path) == path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only the administrator of a machine can mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def _fill(disk: Path) -> Any:
    path = disk / "a.ckpt"
    small = _trained()
    small.save_checkpoint(path)
    large = _trained(width=20_000)
    with pytest.raises(OSError) as error:
        large.save_checkpoint(path)
    return str(error.value)


def test_full_disk(small_disk: Path) -> None:
    """The error names the cause and the file, and no partial file is left."""
    first, second = run_ranks(_fill, 2, small_disk)
    assert first == second
    assert "could not be written: [Errno 28] No space left on device" in first
    assert str(small_disk / "a.ckpt.ranks") in first
    assert lh.newest_checkpoint(small_disk) == small_disk / "a.ckpt"
    assert len(list(small_disk.rglob("*.pt"))) == 2  # the files of the small model
    assert not list(small_disk.rglob("*.part"))


def _can_not_remove(folder: Path) -> list[str]:
    """Train while rank 0 cannot remove files, as on a network file system."""
    if os.environ["RANK"] == "0":
        LocalFileSystem.rm = _refuse
        LocalFileSystem.rm_file = _refuse
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=2)
    _trained(callbacks=[saving], enable_checkpointing=True)
    return sorted(path.name for path in folder.glob("*.ckpt"))


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise PermissionError("stale file handle")


def test_file_that_can_not_be_removed_ends_no_run(tmp_path: Path) -> None:
    left = run_ranks(_can_not_remove, 2, tmp_path)
    assert left == [["step=2.ckpt", "step=4.ckpt"]] * 2
    assert lh.newest_checkpoint(tmp_path) == tmp_path / "step=4.ckpt"
