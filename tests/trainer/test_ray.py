"""Inside Ray Train: a real Ray on this machine, with two emulated hosts of two CPUs each."""

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
from tests.trainer.ray_loops import BATCHES, PRESET_SETTINGS, fit_by_each_preset, fit_three_epochs

# Ray starts a dozen processes, most of which import much; on a busy machine that takes minutes.
LIMIT_S = 900
ASYNCHRONOUS = {"psp", "two_stage_asgd"}

pytestmark = [pytest.mark.needs_ray, pytest.mark.timeout(LIMIT_S + 100)]


@dataclass(frozen=True)
class Job:
    """What a job of Ray has left behind: what each rank noted, and the checkpoints it reported."""

    ranks: list[Any]
    reported: list[dict[str, Any]]

    def checkpoint(self, number: int) -> dict[str, Any]:
        """The content of a reported checkpoint, by its number."""
        path = Path(self.reported[number]["path"], "checkpoint.ckpt")
        content: dict[str, Any] = torch.load(path, weights_only=True)
        return content


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """For Ray's own files, in a path short enough for its sockets; nothing of Ray may be left."""
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
    """Run a loop of `ray_loops` in Ray, in a process of its own that ends within the limit."""
    log = folder / "log.txt"
    arguments = [loop, str(folder), str(workers), ray_folder]
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.trainer.ray_run", *arguments],
            cwd=REPOSITORY,
            # Workers have another working directory.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, log.read_text()[-6000:]
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(workers)]
    return Job(ranks, json.loads((folder / "reported.json").read_text()))


def test_every_preset_trains_as_without_ray(tmp_path: Path, ray_folder: str) -> None:
    """To the last bit, in the same groups; what is reported last is the model that `fit` leaves.

    Asynchronous training differs from run to run, but all ranks end with one model.
    """
    job = run_in_ray("presets", tmp_path, 4, ray_folder)
    plain = run_ranks(fit_by_each_preset, 4, ranks_per_node=2)
    assert len(job.reported) == 2 * len(PRESET_SETTINGS)
    for number, name in enumerate(job.ranks[0]):
        found, expected = [[rank[name] for rank in ranks] for ranks in (job.ranks, plain)]
        assert [own["placed"] for own in found] == [own["placed"] for own in expected]
        saved = job.checkpoint(2 * number + 1)["state_dict"].values()
        model = torch.cat([value.reshape(-1) for value in saved])
        for own in [*found, *([] if name in ASYNCHRONOUS else expected)]:
            assert torch.equal(own["weights"], model), name


def test_goes_on_exactly_after_a_worker_was_killed(tmp_path: Path, ray_folder: str) -> None:
    job = run_in_ray("fault", tmp_path, 4, ray_folder)
    plain = run_ranks(fit_three_epochs, 4, ranks_per_node=2)
    assert [reported["epoch"] for reported in job.reported] == [0, 1, 2]
    for found, expected in zip(job.ranks, plain, strict=True):
        assert (found["made"], expected["made"]) == (2 * BATCHES, 3 * BATCHES)
        assert torch.equal(torch.stack(found["last_steps"]), torch.stack(expected["last_steps"]))
        assert torch.equal(found["weights"], expected["weights"])


def test_mistakes_are_named_and_hosts_may_be_uneven(tmp_path: Path, ray_folder: str) -> None:
    """Three workers on two hosts; strategies that do not ask for hosts as groups train on them."""
    job = run_in_ray("mistakes", tmp_path, 3, ray_folder)
    for rank in job.ranks:
        said = rank["said"]
        assert "the Trainer counts 1 ranks, but 3" in said["without_environment"]
        assert "RayLightningEnvironment()]" in said["without_environment"]
        assert "RayLightningEnvironment" in said["prepared_without_environment"]
        assert "Ray has placed 2, 1" in said["groups_of_uneven_hosts"]
        assert torch.equal(rank["weights"], job.ranks[0]["weights"])
