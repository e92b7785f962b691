"""Tests that a failed save is one error on every rank, and that a save hides no other error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF, BMUF_ADAM, make_trainer


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


def _weights_alone(folder: Path) -> None:
    trainer = make_trainer(BMUF(), max_epochs=1)
    trainer.fit(DropoutNet(), shuffled(5))
    trainer.strategy.checkpoint_io.save_checkpoint = _refuse  # type: ignore[method-assign]
    trainer.save_checkpoint(folder / "a.ckpt", weights_only=True)


def test_weights_that_can_not_be_written_are_an_error_on_every_rank(tmp_path: Path) -> None:
    errors = run_ranks(_weights_alone, 2, tmp_path, expect_failure=True)
    assert errors == ["OSError: no space left on device"] * 2


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


class _NotForBMUFAdam(DropoutNet):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), amsgrad=True)


def _mistake_with_saver(folder: Path) -> None:
    saver = OnExceptionCheckpoint(folder)
    trainer = make_trainer(BMUF_ADAM(), callbacks=[saver], enable_checkpointing=True)
    trainer.fit(_NotForBMUFAdam(), shuffled(5))


def test_error_before_training_is_not_hidden_by_a_save(tmp_path: Path) -> None:
    for error in run_ranks(_mistake_with_saver, 2, tmp_path, expect_failure=True):
        assert error.startswith("ValueError")
        assert "amsgrad" in error


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
