"""Mistakes in a plain loop are one clear error, on every rank."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import lightning_hier as lh
from tests.loop.loops import Loop, adam, network
from tests.ranks import rank_outcomes, run_ranks

SYNC = {"block_sync": lh.BMUFAdam(block_size=3), "warmup_steps": 0}


def attach_bare() -> None:
    Loop(2, wrap="", **SYNC)


def divide_a_part() -> None:
    dist.init_process_group("gloo")
    module, groups = network(), lh.Groups(2)
    fully_shard(module[0], mesh=groups.mesh["group"])
    lh.attach(module, adam(module), groups=groups, **SYNC)


def divide_over_all() -> None:
    dist.init_process_group("gloo")
    module, groups = network(), lh.Groups(1)
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    lh.attach(module, adam(module), groups=groups, **SYNC)


def wrap_twice() -> None:
    Loop(2, make_module=lambda: DDP(network()), **SYNC)


def attach_twice() -> None:
    loop = Loop(2, **SYNC)
    lh.attach(loop.model, loop.optimizer, groups=loop.groups, **SYNC)


def buffers_across() -> None:
    Loop(1, make_module=lambda: nn.BatchNorm1d(4), wrap="world", **SYNC)


def unused_across() -> None:
    Loop(1, wrap="world", ddp={"find_unused_parameters": True}, **SYNC)


def no_synchronisation() -> None:
    Loop(1)


def other_optimizers() -> None:
    Loop(
        1,
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1 + dist.get_rank()),
        **SYNC,
    )


def other_settings() -> None:
    Loop(1, block_sync=lh.BMUF(block_size=3 + int(os.environ["RANK"])), warmup_steps=0)


def without_process_group() -> None:
    lh.Groups(1)


def too_large() -> None:
    dist.init_process_group("gloo")
    lh.Groups(3)


def hook_without_ddp() -> None:
    Loop(1, gradient_sync=lh.GTC(), **SYNC)


def replaced() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    loop.optimizer = sgd(loop.module)
    loop.train(1)


def unfrozen() -> None:
    loop = Loop(1, make_module=half_frozen, **SYNC)
    loop.train(1)
    loop.module.requires_grad_(True)
    loop.train(1)


def steps_in_evaluation() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    with loop.blocks.global_model():
        loop.train(1)


def after_the_end() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    loop.blocks.finish()
    loop.blocks.step()


def uncounted() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    loop.optimizer.step()
    loop.train(1)


def counted_twice() -> None:
    loop = Loop(1, **SYNC)
    loop.train(2)
    if dist.get_rank() == 0:
        loop.blocks.step()
    loop.train(5)
    loop.blocks.finish()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def half_frozen() -> nn.Module:
    module = network()
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (attach_bare, "nothing averages the gradients of the 2 ranks of a group"),
        (divide_a_part, "the parameter '2.weight' is divided among the ranks ["),
        (divide_over_all, "the parameter '0.weight' is divided among the ranks [0, 1]"),
        (wrap_twice, "wrapped by DistributedDataParallel twice"),
        (attach_twice, "has a communication hook already"),
        (buffers_across, "broadcast_buffers=True of a DistributedDataParallel module over all"),
        (unused_across, "find_unused_parameters=True of a DistributedDataParallel module over all"),
        (no_synchronisation, "block_sync=None needs one group"),
        (other_optimizers, "lr=1"),
        (other_settings, "block_size"),
        (without_process_group, "call torch.distributed.init_process_group() before"),
        (too_large, "group_size must divide the number of ranks"),
        (hook_without_ddp, "needs a module that is wrapped by DistributedDataParallel"),
        (replaced, "was not passed to attach()"),
        (unfrozen, "2 parameters were unfrozen after attach(), among them '0.bias'"),
        (steps_in_evaluation, "an optimizer steps while the module contains the global model"),
        (after_the_end, "was called after finish()"),
        (uncounted, "AdamW steps a second time without blocks.step() in between"),
        (counted_twice, "OutOfStepError"),
    ],
)
def test_a_mistake_is_one_error_on_every_rank(mistake: Callable[[], None], text: str) -> None:
    for error in run_ranks(mistake, 2, expect_failure=True):
        assert text in error


def killed(at: int, group_size: int) -> str:
    """What the process of rank 0 prints when its error ends it."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    loop = Loop(group_size, **SYNC)
    loop.train(at)
    if dist.get_rank() == 1:
        os._exit(7)
    printed = io.StringIO()
    try:
        loop.train(4)
    except RuntimeError as error:
        with redirect_stderr(printed):
            sys.excepthook(type(error), error, error.__traceback__)
    return printed.getvalue()


@pytest.mark.parametrize(("at", "group_size"), [(1, 1), (1, 2)])
def test_a_killed_rank_is_named(at: int, group_size: int) -> None:
    """At the end of a block in groups of one rank, and at a step in a group of two."""
    outcomes = rank_outcomes(killed, 2, at, group_size)
    assert outcomes[1].died
    last = (outcomes[0].result or outcomes[0].error or "").strip().splitlines()[-1]
    assert "PeerError" in last and "rank 1" in last
