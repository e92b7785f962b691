"""Tests training in Ray Train, with a real Ray cluster of two emulated hosts of two CPUs each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.conftest import REPOSITORY
from tests.ranks import run_ranks
from tests.trainer.ray_loops import BATCHES, fit_three_epochs

# Ray starts a dozen processes with many imports. On a busy machine that takes minutes.
LIMIT_S = 900

pytestmark = [pytest.mark.needs_ray, pytest.mark.timeout(LIMIT_S + 100)]


@dataclass(frozen=True)
class Job:
    """Results that each rank of a Ray job has written, and the reported checkpoints."""

    ranks: list[Any]
    reported: list[dict[str, Any]]


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Folder of Ray's files, with a path short enough for sockets. No process may remain."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(folder in word for word in process.info["cmdline"] or [])
    ]
    for process in left:
        process.kill()
    shutil.rmtree(folder)
    assert not left


def run_in_ray(loop: str, folder: Path, workers: int, ray_folder: str) -> Job:
    """Run a loop of `ray_loops` in Ray, in a separate process with a time limit."""
    log = folder / "log.txt"
    arguments = [loop, str(folder), str(workers), ray_folder]
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.trainer.ray_run", *arguments],
            cwd=REPOSITORY,
            # Workers start in another working directory.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, log.read_text()[-6000:]
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(workers)]
    return Job(ranks, json.loads((folder / "reported.json").read_text()))


def test_resumes_exactly_after_a_worker_was_killed(tmp_path: Path, ray_folder: str) -> None:
    job = run_in_ray("fault", tmp_path, 4, ray_folder)
    plain = run_ranks(fit_three_epochs, 4, ranks_per_node=2)
    assert [reported["epoch"] for reported in job.reported] == [0, 1, 2]
    for resumed, expected in zip(job.ranks, plain, strict=True):
        assert (resumed["made"], expected["made"]) == (2 * BATCHES, 3 * BATCHES)
        assert torch.equal(torch.stack(resumed["last_steps"]), torch.stack(expected["last_steps"]))
        assert torch.equal(resumed["weights"], expected["weights"])
