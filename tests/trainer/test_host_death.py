"""The death of a whole host under torchrun: the others end normally, over encrypted tcp."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.hosts import hosts, launched, said

LIMIT_S = 90.0


def _wait_for(path: Path, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come\n{said(folder, 3)}")
        time.sleep(0.1)


@pytest.mark.needs_netns
@pytest.mark.parametrize("name", ["psp", "two_stage_asgd"])
def test_hosts_go_on_without_one_that_is_cut_off(name: str, tmp_path: Path) -> None:
    """Agents are not waited for: torchrun's wait minutes for each other, whatever the ranks do."""
    with (
        hosts(3) as found,
        launched(found, 1, "tests.trainer.host_death_run", str(tmp_path), name, folder=tmp_path),
    ):
        _wait_for(tmp_path / "ready", tmp_path)
        found[2].kill_all()
        for rank in range(2):
            _wait_for(tmp_path / f"{rank}.pt", tmp_path)
        time.sleep(0.5)  # until they are written
    (first, loss, steps), (second, same_loss, same_steps) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert (loss, steps) == (same_loss, same_steps)
    assert steps == 20
