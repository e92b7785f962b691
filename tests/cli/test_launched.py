"""Tests that start the command as users do, by its script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.image.model import ResNetClassifier
from examples.loopback import loopback_interface
from tests.conftest import REPOSITORY

CONFIG = REPOSITORY / "examples" / "image" / "configs" / "digits.yaml"
# The script that pip generates from the entry in pyproject.toml.
SCRIPT = "import sys\nfrom lightning_hier.cli.main import main\nsys.exit(main())\n"


def fit(folder: Path, *more: str) -> list[str]:
    """Arguments of a run that takes a few seconds and saves one checkpoint."""
    return [
        *("fit", f"--config={CONFIG}", "--model.channels=[4]", "--data.batch_images=64"),
        *("--trainer.max_epochs=1", "--trainer.strategy=bmuf_gtc"),
        *("--trainer.enable_progress_bar=false", f"--trainer.logger.init_args.save_dir={folder}"),
        *more,
    ]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            "GLOO_SOCKET_IFNAME": loopback_interface(),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_success(*processes: subprocess.Popen[str]) -> list[str]:
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=280)[0])
            assert process.returncode == 0, outputs[-1][-3000:]
    finally:
        for process in processes:
            process.kill()
    return outputs


def loads(folder: Path) -> None:
    """Load the checkpoint without arguments, because it holds the sizes of the data."""
    (checkpoint,) = folder.rglob("*.ckpt")
    model = ResNetClassifier.load_from_checkpoint(checkpoint, weights_only=True)
    assert (model.hparams["num_classes"], model.hparams["image_channels"]) == (10, 1)
    assert torch.isfinite(model(torch.zeros(1, 1, 8, 8))).all()


@pytest.mark.slow
def test_script_starts_two_ranks(tmp_path: Path) -> None:
    """Fast variant: the tests of the examples on two ranks, ``tests/examples/test_*``."""
    script = tmp_path / "lightning-hier"
    script.write_text(SCRIPT)
    wait_for_success(start(str(script), *fit(tmp_path, "--trainer.devices=2")))
    loads(tmp_path)
