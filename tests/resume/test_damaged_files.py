"""Tests damaged checkpoints, refused types in checkpoints, and ``newest_checkpoint``."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError
from tests.ranks import rank_outcomes, run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, make_trainer


def _cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    """Flip one bit in the largest record of the file."""
    content = bytearray(path.read_bytes())
    with ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda info: info.file_size)
    lengths = struct.unpack_from("<HH", content, record.header_offset + 26)
    content[record.header_offset + 30 + sum(lengths) + record.file_size // 2] ^= 1
    path.write_bytes(content)


class _Cosine(DropoutNet):
    """A typical schedule, whose learning rates are NumPy numbers."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: np.cos(n * np.float64(0.1)))
        ]


class _WithPath(DropoutNet):
    def __init__(self, data: Path) -> None:
        super().__init__()
        self.save_hyperparameters()


def _fit(strategy: Any, model: Any, folder: Path, path: Any = None, **settings: Any) -> Any:
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = make_trainer(strategy, callbacks=[saving], enable_checkpointing=True, **settings)
    return trainer, lambda **more: trainer.fit(model, shuffled(5), ckpt_path=path, **more)


def test_numbers_of_numpy_are_saved_as_python_numbers(tmp_path: Path) -> None:
    """Otherwise, ``newest_checkpoint`` returns None, and the job starts at step 0."""
    assert run_ranks(_cosine, 2, tmp_path) == [10, 10]


def _cosine(folder: Path) -> int:
    for epochs in (1, 2):
        newest = lh.newest_checkpoint(folder)
        assert (newest is not None) == (epochs == 2)
        trainer, fit = _fit(BMUF(), _Cosine(), folder, newest, max_epochs=epochs)
        fit()
    steps: int = trainer.global_step
    return steps


def _with_path(folder: Path) -> Any:
    model = _WithPath(folder)
    trainer, fit = _fit(BMUF(), model, folder, max_epochs=2)
    fit()
    trainer.strategy.barrier()
    with pytest.raises(ValueError, match=r"is whole, but holds .*pathlib.* weights_only=False"):
        lh.newest_checkpoint(folder)
    newest = lh.newest_checkpoint(folder, weights_only=False)
    resumed, fit = _fit(BMUF(), _WithPath(folder), folder / "more", newest, max_epochs=3)
    fit(weights_only=False)
    return resumed.global_step


def test_refused_type_is_named_by_newest_checkpoint(tmp_path: Path) -> None:
    """``fit(weights_only=False)`` reads all files of that checkpoint."""
    assert run_ranks(_with_path, 2, tmp_path) == [15, 15]


def _resume(path: Path) -> None:
    make_trainer(BMUF(), max_epochs=3).fit(DropoutNet(width=64), shuffled(5), ckpt_path=path)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_cut, "step=10.ckpt"),
        (_empty, "rank_00001.pt"),
        (_flip, "rank_00000.pt"),
        (Path.unlink, "rank_00001.pt"),
    ],
)
def test_damaged_file_is_one_error_that_names_it(damage: Any, name: str, copied: Path) -> None:
    """``newest_checkpoint`` returns the checkpoint before it.

    It does not detect a flipped bit in a file of a rank, because it does not compute the checksums
    of these files.
    """
    newest = copied / "step=10.ckpt"
    (path,) = [file for file in copied.rglob(name) if "step=10" in str(file)]
    damage(path)
    wanted = newest if damage is _flip else copied / "step=5.ckpt"
    assert lh.newest_checkpoint(copied) == wanted
    errors = run_ranks(_resume, 2, newest, expect_failure=True)
    for error in errors:
        assert error.startswith("DamagedFileError: the checkpoint")
        assert str(path) in error
        assert "newest_checkpoint" in error or "from an older one" in error


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """A load either fails or returns the written values."""
    path, io = tmp_path / "a.ckpt", AtomicCheckpointIO()
    written = {"weights": torch.arange(100.0), "step": 3}
    io.save_checkpoint(written, path)
    whole = path.read_bytes()
    detected = 0
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            read = io.load_checkpoint(path, weights_only=True)
        except DamagedFileError as error:
            assert str(path) in str(error)
            detected += 1
            continue
        assert torch.equal(read["weights"], written["weights"])
        assert read["step"] == 3
    assert detected > len(whole) / 7 / 3


def _read_another(folder: Path, other: str) -> None:
    """Resume rank 0 from one checkpoint, and rank 1 from another one."""
    name = "step=10.ckpt" if os.environ["RANK"] == "0" else other
    _resume(folder / name)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ("elsewhere.ckpt", "could not read"),
        ("step=5.ckpt", "resume from epoch 0"),
    ],
)
def test_ranks_must_read_the_same_save(other: str, problem: str, copied: Path) -> None:
    """Without the check, ranks wait in different collectives until an error of gloo."""
    for outcome in rank_outcomes(_read_another, 2, copied, other):
        assert outcome.error is not None
        assert "ValueError: the ranks do not resume from the same checkpoint" in outcome.error
        assert "rank 0 resume from" in outcome.error
        assert f"rank 1 {problem}" in outcome.error
        assert "a directory that all hosts share" in outcome.error


def test_folder_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AtomicCheckpointIO().save_checkpoint({"optimizer_states": []}, tmp_path / "[1]" / "a.ckpt")
    monkeypatch.chdir(tmp_path)
    assert lh.newest_checkpoint("[1]") == Path("[1]/a.ckpt")
    assert lh.newest_checkpoint("[1]/a.ckpt") is None
    assert lh.newest_checkpoint(f"file://{tmp_path}/[1]") == f"file://{tmp_path}/[1]/a.ckpt"


def _swap(folder: Path) -> str:
    """Swap the files of both ranks."""
    first, second = sorted(folder.glob("*"))
    first.rename(folder / "other")
    second.rename(first)
    (folder / "other").rename(second)
    return "must be that of rank 0 .* but is that of rank 1"


def _copy_older(folder: Path) -> str:
    """Put a file of the save before this one in the place of this one's."""
    newer = folder / "rank_00001.pt"
    (older,) = (path for path in folder.parent.parent.rglob(newer.name) if path != newer)
    newer.write_bytes(older.read_bytes())
    return "must be that of rank 1 of the save .* but is that of rank 1 of the save"


@pytest.mark.parametrize("mistake", [_swap, _copy_older])
def test_file_of_another_rank_or_save_is_one_error_on_every_rank(
    mistake: Any, copied: Path
) -> None:
    (folder,) = (copied / "step=10.ckpt.ranks").iterdir()
    message = mistake(folder)
    for error in run_ranks(_resume, 2, copied / "step=10.ckpt", expect_failure=True):
        assert re.match(f"DamagedFileError: .*{message}", error)


def test_damaged_section_is_one_error_on_every_rank(copied: Path) -> None:
    """``newest_checkpoint`` skips the checkpoint."""
    path = copied / "step=10.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["lightning_hier"]["sizes"] = None
    del checkpoint["lightning_hier"]["kinds"]
    torch.save(checkpoint, path)
    assert lh.newest_checkpoint(copied) == copied / "step=5.ckpt"
    for error in run_ranks(_resume, 2, path, expect_failure=True):
        assert "the section 'lightning_hier' of the checkpoint is damaged, at sizes, kinds" in error
