"""Tests that waiting time counts only communication that blocks training, not overlapped one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.reducers import AllReducer
from lightning_hier.comm.progress_record import progress_record
from lightning_hier.comm.traffic import Traffic
from tests.ranks import run_ranks
from tests.trainer.fitting import HIERARCHICAL, Net, fit, this_rank
from tests.waiting import leave_mark, wait_until

# Delay of the last rank, after the other ranks have nothing left to do.
LATE_S = 0.3


def _late_rank() -> bool:
    return this_rank() == 1


def _come_late(mark: Path) -> None:
    wait_until(mark.exists, "the other rank to have nothing left to do")
    time.sleep(LATE_S)


class _Late(Net):
    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if _late_rank():
            _come_late(self.mark)
        return super().training_step(batch, batch_idx)


def _mark_last_bucket(mark: Path) -> None:
    reduce = AllReducer.reduce

    def marking(self: AllReducer, bucket: Any) -> Any:
        future = reduce(self, bucket)
        if bucket.is_last and not _late_rank():
            leave_mark(mark.parent, mark.name)
        return future

    AllReducer.reduce = marking  # type: ignore[method-assign]


def _step(folder: Path) -> float:
    mark = folder / "handed_over"
    _mark_last_bucket(mark)
    strategy = HIERARCHICAL(group_size="world")
    fit(strategy, 1, _Late(mark))
    return strategy.traffic.waited_seconds("group")


def test_end_of_backward_is_waited_for(tmp_path: Path) -> None:
    on_time, late = run_ranks(_step, 2, tmp_path)
    assert on_time >= LATE_S
    assert late < on_time


def _overlapped(folder: Path) -> tuple[float, float]:
    dist.init_process_group("gloo")
    traffic = Traffic()
    channel = Channel(dist.group.WORLD, "across", traffic, progress_record())
    if _late_rank():
        _come_late(folder / "sent")
    pending = channel.all_reduce_(torch.zeros(10), "models")
    leave_mark(folder, "sent")
    # Stands for computation during the all-reduce.
    wait_until(pending.work.is_completed, "the mean")
    pending.wait()
    return traffic.of("across", "models").seconds, traffic.waited_seconds("across")


def test_communication_beside_computation_is_in_flight_but_not_waited_for(tmp_path: Path) -> None:
    (in_flight, waited), _ = run_ranks(_overlapped, 2, tmp_path)
    assert in_flight >= LATE_S
    assert waited < 0.5 * in_flight
