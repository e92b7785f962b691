"""Communication rates and the place in the block in the progress bar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hier.callbacks.progress import Rates, place_in_block
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import StepCount, Worker
from lightning_hier.strategies.trainer_changes import TrainerChanges


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rates_are_those_of_the_interval_since_the_last_change() -> None:
    traffic, clock = Traffic(), _Clock()
    traffic.add("across", "models", payload_bytes=10**9, seconds=50.0)  # long ago
    rates = Rates(traffic, clock)
    assert rates.read() == {}  # no time has passed
    clock.now_s += 2.0
    traffic.add("group", "gradients", payload_bytes=3_000_000, seconds=1.5)
    traffic.add("across", "models", payload_bytes=1_000_000, seconds=1.5)
    traffic.add_wait("group", 0.3)
    traffic.add_wait("across", 0.2)
    assert rates.read() == {"comm": "25%", "MB/s": "2"}
    clock.now_s += 0.5
    traffic.add("group", "gradients", payload_bytes=3_000_000, seconds=1.5)
    assert rates.read() == {"comm": "25%", "MB/s": "2"}  # the interval is too short for new rates
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
    """A progress bar of a user. One of its entries has the same name as one of ours."""

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {"v_num": 3, "block": "mine"}


def test_entries_of_the_user_stay_and_ours_are_removed() -> None:
    bar = _Bar()
    trainer: Any = SimpleNamespace(progress_bar_callback=bar)
    worker = Worker(steps=[StepCount(total=2, in_block=2)])
    for own, entries in ((worker, {"v_num": 3, "block": "mine"}), (None, {"v_num": 3})):
        changes = TrainerChanges(trainer)
        changes.show_in_progress_bar(Traffic(), own, block_size=3)
        assert entries.items() <= bar.get_metrics(trainer, None).items()
        changes.close()
    assert bar.get_metrics(trainer, None) == {"v_num": 3, "block": "mine"}
    assert "get_metrics" not in vars(bar)
