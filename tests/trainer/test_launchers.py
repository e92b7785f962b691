"""Tests launches by Lightning's launcher and torchrun on one host, and the end of processes.

`test_elastic.py` starts a strategy without servers by torchrun. Other starts are slow tests here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.ranks import run_ranks
from tests.trainer.fitting import fitted


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("psp", "lightning"), ("two_stage_asgd", "torchrun")],
)
@pytest.mark.slow
def test_two_ranks_end_with_the_same_model(name: str, launcher: str, tmp_path: Path) -> None:
    (first, world), (second, _) = _launched(launcher, tmp_path, name)
    assert world == 2
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "launcher", ["lightning", pytest.param("torchrun", marks=pytest.mark.slow)]
)
def test_launchers_start_all_ranks_of_a_device(launcher: str, tmp_path: Path) -> None:
    """A device with two ranks trains what two devices train.

    `test_ranks_per_device.py` has more devices, with the environment that torchrun sets.
    """
    devices = run_ranks(_fit_on_devices, 2)
    launched = _launched(launcher, tmp_path, "bmuf_gtc", devices=1)
    for (weights, world), expected in zip(launched, devices, strict=True):
        assert world == 2
        assert torch.equal(weights, expected)


def _fit_on_devices() -> Any:
    return fitted("bmuf_gtc", batches=5, validate=2, max_epochs=2).weights


def _launched(
    launcher: str, folder: Path, name: str, devices: int = 2
) -> list[tuple[torch.Tensor, int]]:
    """Weights and number of ranks of each of the two ranks of `launched_run`."""
    command = ["-m", "tests.trainer.launched_run", str(folder), name, str(devices)]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = torchrun + command
    done = subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_groups_are_destroyed_only_at_an_ordinary_end() -> None:
    """After an error, groups must not be destroyed, because a collective may still be pending.

    The destruction would wait for it. Threads of gloo that remain abort the process if they release
    a Python object at exit.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.leaving_run"],
        cwd=REPOSITORY,
        env={**os.environ, "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert [line for line in done.stdout.splitlines() if "left:" in line or "status" in line] == [
        "groups left: False gloo threads left: False",
        "well: status 0",
        "groups left: True gloo threads left: True",
        "fail: status 1",
    ], done.stderr
