"""Plain loops in groups that come and go, each group in processes of its own."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import TCPStore

import lightning_hier as lh
from lightning_hier.comm.blocks import shard_placement
from tests.fabric.loops import FabricLoop
from tests.loop.loops import Loop, adam
from tests.membership.groups import lighthouse
from tests.ranks import rank_outcomes, run_ranks
from tests.waiting import leave_mark, wait_for_marks

TAU, STEPS = 4, 24


@pytest.fixture
def address() -> Iterator[str]:
    with lighthouse() as url:
        yield url


def _job(rank: int, ranks: int, port: int) -> tuple[int, int]:
    """Make the environment of this rank that of a job of its own. Returns its group and number."""
    os.environ.update(
        MASTER_PORT=str(port), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
        RANK=str(rank % ranks), LOCAL_RANK=str(rank % ranks), RUST_LOG="error",
    )  # fmt: skip
    return rank // ranks, rank % ranks


def _loop(address: str, group: int, sync: Any, group_size: Any = "world", **settings: Any) -> Loop:
    member = lh.TorchFT(address, group, 2, min_groups=1, join_timeout_s=20.0)
    return Loop(
        group_size, dtype=torch.float64, block_sync=sync, membership=member, total_steps=STEPS,
        **settings,
    )  # fmt: skip


def _unpickled(*_: Any) -> Any:
    raise AssertionError("what another group has sent was unpickled")


def _train(address: str, ports: list[int], folder: str, wrap: str) -> Any:
    """Train in the groups 0, 1, and 1 again, which dies at its first life in its third block."""
    rank = int(os.environ["RANK"])
    life, number = _job(rank, 2, ports[rank // 2])
    marks, group = Path(folder), min(life, 1)
    if life == 2:
        wait_for_marks(marks, "died")
        if number == 0:
            leave_mark(marks, "returning")
    sync = lh.DiLoCo(block_size=TAU, fragments=2, overlap=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle, "load", _unpickled)
        loop = _loop(address, group, sync, wrap=wrap)
    loop.rank = group * 2 + number
    started = loop.blocks.steps
    if life == 2:  # its old checkpoint is older than what it has taken
        before = loop.weights()
        with pytest.warns(UserWarning, match="a newer one") if number == 0 else nullcontext():
            dcp.load({"blocks": loop.blocks}, checkpoint_id=marks / "saved-1")
        assert torch.equal(before, loop.weights())
    while loop.blocks.steps < STEPS:
        if loop.blocks.steps == 2 * TAU + 2:
            if life == 1:
                dcp.save({"blocks": loop.blocks}, checkpoint_id=marks / "saved-1")
                dist.barrier()
                if number == 0:
                    leave_mark(marks, "died")
                os.kill(os.getpid(), signal.SIGKILL)
            if life == 0:
                wait_for_marks(marks, "returning")
        loop.train(1)
    loop.blocks.finish()
    return started, loop.blocks.steps, loop.weights().tolist()


@pytest.mark.parametrize("wrap", ["divided", "group"])
def test_a_group_that_died_returns_with_the_state_of_the_other(
    tmp_path: Path, address: str, wrap: str
) -> None:
    """Groups of two ranks, divided by FSDP2 or wrapped by DDP. Fragments travel for a step."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(3)]
    ports = [store.port for store in stores]
    outcomes = rank_outcomes(_train, 6, address, ports, str(tmp_path), wrap, timeout_s=100.0)
    stayed, died, returned = (outcomes[i : i + 2] for i in (0, 2, 4))
    assert all(outcome.died for outcome in died)
    assert [outcome.error for outcome in [*stayed, *returned]] == [None] * 4
    for one, other in zip(stayed, returned, strict=True):
        started, ended, shards = other.result
        assert one.result[2] == shards
        assert started >= 2 * TAU and ended == STEPS


def _together(address: str, ports: list[int], folder: str) -> Any:
    group, _ = _job(int(os.environ["RANK"]), 1, ports[int(os.environ["RANK"])])
    loop = _loop(address, group, lh.BMUF(block_size=TAU))
    loop.rank = group
    loop.train(TAU + 2)
    with pytest.raises(ValueError, match="one module at a time"):
        member = lh.TorchFT(address, group, 2)
        lh.attach(
            loop.module,
            adam(loop.module),
            groups=loop.groups,
            block_sync=lh.BMUF(),
            membership=member,
        )
    state = Path(folder) / str(group)
    dcp.save({"blocks": loop.blocks}, checkpoint_id=state)
    loop.train(TAU)
    middle = loop.weights()
    loop.blocks.finish()
    # Both groups have ended. They start again, each from its own checkpoint.
    again = _loop(address, group, lh.BMUF(block_size=TAU))
    again.rank = group
    dcp.load({"blocks": again.blocks}, checkpoint_id=state)
    again.done = TAU + 2
    again.train(TAU)
    assert torch.equal(again.weights(), middle)
    again.blocks.finish()
    return middle.tolist()


def _plain() -> list[float]:
    loop = Loop(1, dtype=torch.float64, block_sync=lh.BMUF(block_size=TAU), warmup_steps=0)
    loop.train(2 * TAU + 2)
    return loop.weights().tolist()


def test_groups_that_are_all_there_train_as_without_membership(
    tmp_path: Path, address: str
) -> None:
    """And they resume exactly from their own checkpoints.

    Up to rounding, because they exchange updates where others exchange models.
    """
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports = [store.port for store in stores]
    outcomes = rank_outcomes(_together, 2, address, ports, str(tmp_path), timeout_s=100.0)
    assert [outcome.error for outcome in outcomes] == [None, None]
    for outcome, plain in zip(outcomes, run_ranks(_plain, 2), strict=True):
        torch.testing.assert_close(outcome.result, plain, rtol=1e-12, atol=1e-14)


def _in_fabric(address: str, ports: list[int]) -> Any:
    group, _ = _job(int(os.environ["RANK"]), 1, ports[int(os.environ["RANK"])])
    member = lh.TorchFT(address, group, 2, min_groups=1, join_timeout_s=20.0)
    sync = lh.BMUF(block_size=TAU)
    run = FabricLoop("world", block_sync=sync, membership=member, total_steps=STEPS)
    run.rank = group
    run.train(2 * TAU + 2)
    strategy: Any = run.fabric.strategy
    middle, sampler = run.weights(), strategy.distributed_sampler_kwargs
    strategy.finish()
    return middle.tolist(), sampler


def test_groups_of_fabric(address: str) -> None:
    """Up to the rounding of single precision, as in the plain loop. The data are divided."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports = [store.port for store in stores]
    outcomes = rank_outcomes(_in_fabric, 2, address, ports, timeout_s=100.0)
    assert [outcome.error for outcome in outcomes] == [None, None]
    for group, plain in enumerate(run_ranks(_plain, 2)):
        weights, sampler = outcomes[group].result
        torch.testing.assert_close(weights, plain, rtol=1e-4, atol=1e-5)
        assert sampler == {"num_replicas": 2, "rank": group}


def _half_frozen(address: str, ports: list[int]) -> list[float]:
    """The model of a group whose initial weights are not those of the other one."""
    group, _ = _job(int(os.environ["RANK"]), 1, ports[int(os.environ["RANK"])])

    def make_module() -> nn.Module:
        torch.manual_seed(group)
        layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        layers[0].requires_grad_(False)
        return layers

    loop = _loop(address, group, lh.BMUF(block_size=TAU), make_module=make_module)
    loop.rank = group
    loop.train(2 * TAU)
    loop.blocks.finish()
    return loop.weights().tolist()


def test_frozen_parameters_are_those_of_the_first_group(address: str) -> None:
    """They are shared before training, and are not averaged in one group alone."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports = [store.port for store in stores]
    first, second = rank_outcomes(_half_frozen, 2, address, ports, timeout_s=100.0)
    assert first.error is None and second.error is None
    assert first.result == second.result


def _on_other_hosts(address: str, ports: list[int]) -> None:
    group, number = _job(int(os.environ["RANK"]), 2, ports[int(os.environ["RANK"]) // 2])
    os.environ["GROUP_RANK"] = str(group * number)  # the ranks of group 1 are on two hosts
    shard_placement.count_nics = lambda: 1  # type: ignore[assignment, misc]
    with pytest.raises(ValueError, match=r"differ in across: (leader|sharded) here"):
        _loop(address, group, lh.BMUF(block_size=TAU))


def test_groups_that_would_divide_their_model_differently(address: str) -> None:
    """A rank of each host exchanges the model if it has a NIC of its own, otherwise the leader."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports = [store.port for store in stores]
    outcomes = rank_outcomes(_on_other_hosts, 4, address, ports, timeout_s=100.0)
    assert [outcome.error for outcome in outcomes] == [None] * 4


def _with_outer_rate(address: str, ports: list[int]) -> None:
    group, _ = _job(int(os.environ["RANK"]), 1, ports[int(os.environ["RANK"])])
    outer = partial(torch.optim.SGD, lr=0.1 * (group + 1))
    with pytest.raises(ValueError, match=r"differ in outer_optimizer: SGD\(lr=0.\d.* here"):
        _loop(address, group, lh.DiLoCo(block_size=TAU, outer_optimizer=outer))


def test_groups_with_other_outer_learning_rates(address: str) -> None:
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports = [store.port for store in stores]
    outcomes = rank_outcomes(_with_outer_rate, 2, address, ports, timeout_s=100.0)
    assert [outcome.error for outcome in outcomes] == [None] * 2


def _refused(address: str) -> None:
    for match, sync, size, settings in (
        ("all ranks of a job are one group, got 2 groups of 1 rank", lh.BMUF(), 1, {}),
        ("warmup_steps=5 can't be combined", lh.BMUF(), "world", {"warmup_steps": 5}),
        ("block_sync=None can't be combined", None, "world", {}),
        ("pass an overlap below", lh.BMUF(block_size=4, overlap=True), "world", {}),
    ):
        with pytest.raises(ValueError, match=match):
            _loop(address, 0, sync, size, **settings)


def test_what_groups_that_come_and_go_cannot_have() -> None:
    run_ranks(_refused, 2, "http://127.0.0.1:9")
