"""What the progress bar says about communication."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hier.callbacks.progress import Rates, place_in_block, show_in_progress_bar
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import StepCount, Worker


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_figures_are_of_the_time_since_they_last_changed() -> None:
    traffic, clock = Traffic(), _Clock()
    traffic.add("across", "models", payload_bytes=10**9, seconds=50.0)  # long ago
    rates = Rates(traffic, clock)
    assert rates.read() == {}  # nothing to tell yet
    clock.now_s += 2.0
    traffic.add("group", "gradients", payload_bytes=3_000_000, seconds=1.5)
    traffic.add("across", "models", payload_bytes=1_000_000, seconds=1.5)
    traffic.add_wait("group", 0.3)
    traffic.add_wait("across", 0.2)
    assert rates.read() == {"comm": "25%", "MB/s": "2"}
    clock.now_s += 0.5
    traffic.add("group", "gradients", payload_bytes=3_000_000, seconds=1.5)
    assert rates.read() == {"comm": "25%", "MB/s": "2"}  # too soon for another
    clock.now_s += 0.5
    assert rates.read() == {"comm": "0%", "MB/s": "3"}


@pytest.mark.parametrize(
    ("counts", "block_size", "warmup_steps", "text"),
    [
        ([], 50, 0, ""),
        ([StepCount(total=7, in_block=7)], 50, 0, "1 7/50"),
        ([StepCount(total=100, in_block=0, blocks=2)], 50, 0, "3 0/50"),
        ([StepCount(total=3)], 50, 10, "warm-up 3/10"),
        ([StepCount(total=3)], None, 10, "warm-up 3/10"),
        ([StepCount(total=30)], None, 10, ""),
        ([StepCount(5, 5), StepCount(9, 4, 1)], 5, 0, "1 5/5, 2 4/5"),
    ],
)
def test_place_in_the_block(
    counts: list[StepCount], block_size: int | None, warmup_steps: int, text: str
) -> None:
    worker = Worker(steps=counts)
    assert place_in_block(worker, block_size=block_size, warmup_steps=warmup_steps) == text


class _Bar:
    """A progress bar of a user, with an entry of the name of one of ours."""

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {"v_num": 3, "block": "mine"}


def test_users_entries_stay_and_ours_are_taken_away_again() -> None:
    bar = _Bar()
    trainer: Any = SimpleNamespace(progress_bar_callback=bar)
    for block, entries in (("1 2/3", {"v_num": 3, "block": "mine"}), ("", {"v_num": 3})):
        restore = show_in_progress_bar(trainer, Traffic(), partial(str, block))
        assert entries.items() <= bar.get_metrics(trainer, None).items()
        restore()
    assert bar.get_metrics(trainer, None) == {"v_num": 3, "block": "mine"}
    assert "get_metrics" not in vars(bar)
