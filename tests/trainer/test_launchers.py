"""Tests launches by Lightning's launcher and torchrun on one host, and the end of processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tests.cli.shell import run_python

ENDED = "groups left: False gloo threads left: False"


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("lightning", "bmuf_gtc"),
        pytest.param("torchrun", "two_stage_asgd", marks=pytest.mark.slow),
    ],
)
def test_launchers_start_all_ranks_of_a_device(launcher: str, name: str, tmp_path: Path) -> None:
    """`test_ranks_per_device.py` tests what they train, with the environment of torchrun.

    Groups are destroyed only at an ordinary end. After an error, a collective may still be pending,
    for which the destruction would wait. Threads of gloo that remain abort the process if they
    release a Python object at exit.
    """
    done = _launched(launcher, tmp_path, name)
    (first, world), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert world == 2
    assert torch.equal(first, second)
    lines = [line for line in done.stdout.splitlines() if "left:" in line or "status" in line]
    failed = ["groups left: True gloo threads left: True", "status 1"]
    assert lines == [*(failed if launcher == "lightning" else []), ENDED, ENDED], done.stderr


def _launched(launcher: str, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "tests.trainer.launched_run", str(folder), name]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = torchrun + command
    done = run_python(*command)
    assert done.returncode == 0, done.stderr[-3000:]
    return done
