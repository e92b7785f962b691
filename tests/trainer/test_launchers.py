"""Tests launches by Lightning's launcher and torchrun on one host, and the end of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("lightning", "bmuf_gtc"),
        pytest.param("torchrun", "two_stage_asgd", marks=pytest.mark.slow),
    ],
)
def test_launchers_start_all_ranks_of_a_device(launcher: str, name: str, tmp_path: Path) -> None:
    """`test_ranks_per_device.py` tests what they train, with the environment of torchrun."""
    (first, world), (second, _) = _launched(launcher, tmp_path, name)
    assert world == 2
    assert torch.equal(first, second)


def _launched(launcher: str, folder: Path, name: str) -> list[tuple[torch.Tensor, int]]:
    """Weights and number of ranks of each of the two ranks of `launched_run`."""
    command = ["-m", "tests.trainer.launched_run", str(folder), name]
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
