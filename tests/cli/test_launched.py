"""Tests that start the command as users do, by its script."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.image.digits import ResNetClassifier
from examples.loopback import loopback_interface
from tests.cli.shell import run_python
from tests.conftest import REPOSITORY

CONFIG = REPOSITORY / "examples" / "image" / "configs" / "digits.yaml"
# The script that pip generates from the entry in pyproject.toml.
SCRIPT = "import sys\nfrom lightning_hier.cli.main import main\nsys.exit(main())\n"


@pytest.mark.slow
def test_script_starts_two_ranks(tmp_path: Path) -> None:
    """Fast variant: the tests of the examples on two ranks, ``tests/examples/test_*``.

    The checkpoint loads without arguments, because it holds those of the model.
    """
    script = tmp_path / "lightning-hier"
    script.write_text(SCRIPT)
    arguments = [
        *("fit", f"--config={CONFIG}", "--model.channels=[4]", "--data.batch_images=64"),
        *("--trainer.max_epochs=1", "--trainer.strategy=bmuf_gtc", "--trainer.devices=2"),
        *("--trainer.enable_progress_bar=false", f"--trainer.logger.init_args.save_dir={tmp_path}"),
    ]
    done = run_python(str(script), *arguments, GLOO_SOCKET_IFNAME=loopback_interface())
    assert done.returncode == 0, done.stderr[-3000:]
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    model = ResNetClassifier.load_from_checkpoint(checkpoint, weights_only=True)
    assert model.hparams["channels"] == [4]
    assert torch.isfinite(model(torch.zeros(1, 1, 8, 8))).all()
