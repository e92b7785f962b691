"""Tests launches by Lightning's launcher and torchrun on one host, and the end of processes.

`test_elastic.py` starts a strategy without servers by torchrun. Strategies with servers are slow
tests here. `test_host_death.py` starts them by torchrun on three emulated hosts, which need root.
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
    [
        ("bmuf_gtc", "lightning"),
        pytest.param("psp", "lightning", marks=pytest.mark.slow),
        pytest.param("psp", "torchrun", marks=pytest.mark.slow),
        pytest.param("two_stage_asgd", "lightning", marks=pytest.mark.slow),
        pytest.param("two_stage_asgd", "torchrun", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_end_with_the_same_model(name: str, launcher: str, tmp_path: Path) -> None:
    (first, world), (second, _) = _launched(launcher, tmp_path, name)
    assert world == 2
    assert torch.equal(first, second)


def test_launchers_start_all_ranks_of_a_device(tmp_path: Path) -> None:
    """Two devices with two ranks each, by both launchers, train what four devices train."""
    devices = run_ranks(_fit_on_devices, 4)
    for launcher in ("lightning", "torchrun"):
        launched = _launched(launcher, tmp_path, "bmuf_gtc", ranks_per_device=2)
        for (weights, world), expected in zip(launched, devices, strict=True):
            assert world == 4
            assert torch.equal(weights, expected)


def _fit_on_devices() -> Any:
    return fitted("bmuf_gtc", batches=5, validate=2, max_epochs=2).weights


def _launched(
    launcher: str, folder: Path, name: str, ranks_per_device: int = 1
) -> list[tuple[torch.Tensor, int]]:
    """Weights and number of ranks of each rank of `launched_run`, which has two devices."""
    ranks = 2 * ranks_per_device
    command = ["-m", "tests.trainer.launched_run", str(folder), name, str(ranks_per_device)]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
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
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


@pytest.mark.parametrize(("end", "left", "status"), [("well", False, 0), ("fail", True, 1)])
def test_groups_are_destroyed_only_at_an_ordinary_end(end: str, left: bool, status: int) -> None:
    """After an error, groups must not be destroyed, because a collective may still be pending.

    The destruction would wait for it. Threads of gloo that remain abort the process if they release
    a Python object at exit.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.leaving_run", end],
        cwd=REPOSITORY,
        env={**os.environ, "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert f"groups left: {left} gloo threads left: {left}" in done.stdout
