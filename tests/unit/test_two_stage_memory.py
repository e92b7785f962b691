"""Shared memory of a node: locks of killed processes, sums that are taken once, and errors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.shards import Shard, plan_shards
from lightning_hier.parameter_server.two_stage import shared_memory
from lightning_hier.parameter_server.two_stage.replica import Replica, file_size, open_replicas
from lightning_hier.parameter_server.two_stage.shared_memory import create_file, remove_file
from tests.waiting import nothing_stays_in


def _shard(*sizes: int) -> Shard:
    parameters = [Parameter(torch.zeros(size)) for size in sizes]
    return plan_shards([torch.optim.SGD(parameters)], 1)[0]


NUMEL = 1000
SHARD = _shard(500, 300, 200)
ALL = torch.ones(3, dtype=torch.uint8)
LIMIT_S = 0.2
_fork = get_context("fork")


@pytest.fixture
def path() -> Iterator[Path]:
    path = create_file(file_size(2, SHARD))
    yield path
    remove_file(path)


def _open(path: Path) -> Replica:
    return Replica(path, devices=2, shard=SHARD)


def _none() -> Tensor:
    return torch.zeros_like(ALL)


def _in_child(act: Callable[[], None]) -> Any:
    child = _fork.Process(target=act)
    child.start()
    return child


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(-8, 8)), max_size=30))
def test_sums_that_are_taken_are_those_that_were_added(moves: list[tuple[int, bool, int]]) -> None:
    """Two devices add and take in any order. Values are whole numbers, so sums are exact."""
    path = create_file(file_size(2, SHARD))
    replica = _open(path)
    remove_file(path)
    added = {0: 0, 1: 0}
    taken, count = torch.zeros(NUMEL), 0
    for device, adds, value in moves:
        if adds:
            gradient = torch.full((NUMEL,), float(value))
            assert replica.accumulators[device].add(gradient, ALL, LIMIT_S)
            added[device] += value
        else:
            part = torch.empty(NUMEL)
            accumulator = replica.accumulators[device]
            result = accumulator.take(part, _none(), fresh=True, limit_s=LIMIT_S)
            if result:
                taken += part
                count += result
    for accumulator in replica.accumulators:
        count += accumulator.take(taken, _none(), fresh=False, limit_s=LIMIT_S)
    assert torch.equal(taken, torch.full((NUMEL,), float(sum(added.values()))))
    assert count == sum(adds for _, adds, _ in moves) and replica.pending == 0


def test_lock_of_a_killed_process_is_released_although_its_child_still_runs(path: Path) -> None:
    """Worker processes of a DataLoader are forked from the device and live a little longer."""
    replica = _open(path)

    def hold_and_fork() -> None:
        own = _open(path)
        with own.accumulators[0]._lock.locked(LIMIT_S):
            grandchild = os.fork()
            if grandchild == 0:
                time.sleep(60)  # it is killed below
                os._exit(0)
            own.node.finals = grandchild
            time.sleep(60)

    child = _in_child(hold_and_fork)
    while replica.node.finals == 0:
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    try:
        os.kill(replica.node.finals, 0)
        with replica.accumulators[0]._lock.locked(LIMIT_S) as locked:
            assert locked
    finally:
        os.kill(replica.node.finals, signal.SIGKILL)


def test_error_of_a_group_on_several_hosts_names_them() -> None:
    def two_hosts(value: Any) -> list[Any]:
        return [value, {"result": value["result"] | {"memory": "elsewhere", "host": "far-away"}}]

    with pytest.raises(RuntimeError, match=r"rank 0 on .*, rank 1 on far-away; set group_size"):
        open_replicas([_shard(3)], group_size=2, rank=0, exchange=two_hosts)


def test_too_little_shared_memory_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    message = r"need 12 MiB of shared memory in /dev/shm.*--shm-size"
    with nothing_stays_in(shared_memory.FOLDER), pytest.raises(RuntimeError, match=message):
        open_replicas([_shard(2**20)], group_size=2, rank=0, exchange=lambda v: [v, v])


def test_rank_that_cannot_open_the_file_is_named() -> None:
    def gone(value: Any) -> list[Any]:
        if "result" not in value:
            return [{"result": None}, value]
        paths = ["/dev/shm/lightning-hier-none/replica"]
        return [{"result": value["result"] | {"paths": paths}}, value]

    with pytest.raises(RuntimeError, match="rank 1: .*No such file"):
        open_replicas([_shard(3)], group_size=2, rank=1, exchange=gone)
