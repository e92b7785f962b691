"""Lightning's own launcher and torchrun start our strategies, on one host; how processes end.

`test_elastic.py` starts a strategy without servers by torchrun. Strategies with servers are slow
tests: `test_host_death.py` starts them by torchrun on three hosts, where root can emulate those.
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
def test_groups_are_destroyed_at_an_ordinary_end_alone(end: str, left: bool, status: int) -> None:
    """A group in which a collective may still be waiting must not be destroyed: that would wait.

    Threads of gloo that are left abort the process if they let go of a Python object in its last
    moments.
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
