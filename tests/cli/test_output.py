"""Tests of the output of a run: no noise of libraries."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from lightning_hier.cli.main import main
from lightning_hier.cli.training import silence_libraries
from tests.conftest import REPOSITORY

CONFIG = REPOSITORY / "examples" / "image" / "configs" / "digits.yaml"
SMALL = ["--model.channels=[4]", "--data.batch_images=64", "--trainer.max_epochs=1"]


def arguments(folder: Path, *more: str) -> list[str]:
    save = f"--trainer.logger.init_args.save_dir={folder}"
    return ["fit", f"--config={CONFIG}", *SMALL, save, *more]


def test_output_has_values_and_no_tips(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(arguments(tmp_path))
    out, err = capfd.readouterr()
    assert "valid/accuracy" in out + err
    assert not {"Tip:", "deprecated"} & set((out + err).split())


def test_libraries_are_silent_and_a_users_own_code_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence_libraries("test")
        for module in ("lightning.pytorch.utilities._pytree", "torch.nn", "torchlike", "mine"):
            warnings.warn_explicit("old", FutureWarning, f"{module}.py", 1, module=module)
        moved = "The dirpath has changed from 'a' to 'b'"
        warnings.warn_explicit(moved, UserWarning, "y.py", 1, module="lightning.pytorch.x")
        warnings.warn_explicit("wrong", UserWarning, "x.py", 1, module="lightning.pytorch.x")
    shown = [(warning.filename, str(warning.message)) for warning in caught]
    assert shown == [("torchlike.py", "old"), ("mine.py", "old"), ("x.py", "wrong")]
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with caplog.at_level(logging.INFO, log.name):
        log.propagate = True
        log.info("\N{ELECTRIC LIGHT BULB} Tip: try installing [litlogger]")
        log.info("GPU available: False")
    assert caplog.messages == ["GPU available: False"]
