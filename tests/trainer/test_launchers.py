"""Tests launches by Lightning's launcher and torchrun on one host, and the end of processes.

`test_elastic.py` starts a strategy without servers by torchrun. Strategies with servers are slow
tests here. `test_host_death.py` starts them by torchrun on three emulated hosts, which need root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY

LAUNCHERS = {
    "lightning": ["-m", "tests.trainer.launched_run"],
    "torchrun": [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "tests.trainer.launched_run"),
    ],
}


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
    done = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(tmp_path), name],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (first, world), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert world == 2
    assert torch.equal(first, second)


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
