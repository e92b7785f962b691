"""Tests the death of a whole host under torchrun: the other hosts finish training.

Communication is encrypted TCP.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.hosts import hosts
from benchmarks.launch import launched, log_tails
from tests.waiting import wait_for_marks


@pytest.mark.needs_netns
@pytest.mark.parametrize("name", ["psp", "two_stage_asgd"])
def test_hosts_go_on_without_one_that_is_cut_off(name: str, tmp_path: Path) -> None:
    """The test does not wait for torchrun's agents, which wait minutes for each other."""
    with (
        hosts(3) as three,
        launched(three, 1, "tests.trainer.host_death_run", str(tmp_path), name, folder=tmp_path),
    ):
        try:
            wait_for_marks(tmp_path, "ready")
            three[2].kill_all()
            wait_for_marks(tmp_path, "saved0", "saved1")
        except AssertionError as error:
            raise AssertionError(log_tails(tmp_path, 3)) from error
    (first, loss, steps), (second, same_loss, same_steps) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert (loss, steps) == (same_loss, same_steps)
    assert steps == 20
