"""Mistakes in a plain loop are one clear error, on every rank."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import lightning_hier as lh
from tests.loop.loops import Loop, adam, network
from tests.ranks import rank_outcomes
from tests.trainer.mistakes import Mistakes, errors_by_rank

SYNC = {"block_sync": lh.BMUFAdam(block_size=3), "warmup_steps": 0}


def divide(mesh_of: Callable[[lh.Groups], DeviceMesh], group_size: int, part: slice) -> None:
    module, groups = network(), lh.Groups(group_size)
    fully_shard(module[part], mesh=mesh_of(groups))
    lh.attach(module, adam(module), groups=groups, **SYNC)


def other_buffers() -> None:
    module, groups = network(), lh.Groups(2)
    if dist.get_rank() == 1:
        module.register_buffer("table", torch.ones(1000))
    fully_shard(module, mesh=groups.mesh["group"])
    lh.attach(module, adam(module), groups=groups, **SYNC)


def attach_twice() -> None:
    loop = Loop(2, **SYNC)
    lh.attach(loop.model, loop.optimizer, groups=loop.groups, **SYNC)


def replaced() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    loop.optimizer = torch.optim.SGD(loop.module.parameters(), lr=0.1)
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


def attached_anew() -> None:
    loop = Loop(1, **SYNC)
    loop.train(1)
    loop.blocks = lh.attach(loop.model, loop.optimizer, groups=loop.groups, **SYNC)
    loop.train(2)


def counted_twice() -> None:
    loop = Loop(1, **SYNC)
    loop.train(2)
    if dist.get_rank() == 0:
        loop.blocks.step()
    loop.train(5)
    loop.blocks.finish()


def adam_at_another_rate(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1 + dist.get_rank())


def adam_of_a_loss(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([*module.parameters(), *nn.Linear(2, 3).parameters()])


def zero(module: nn.Module) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=0.02)


def outer_sgd(lr: float) -> lh.DiLoCo:
    return lh.DiLoCo(block_size=3, outer_optimizer=partial(torch.optim.SGD, lr=lr))


def half_frozen() -> nn.Module:
    module = network()
    module[0].requires_grad_(False)
    return module


def with_sparse_layer() -> nn.Module:
    return network().append(nn.Embedding(3, 2, sparse=True))


def complex_parameter() -> None:
    module, groups = nn.ParameterList([torch.zeros(3, dtype=torch.complex64)]), lh.Groups(2)
    model = DDP(module, process_group=groups.group)
    lh.attach(model, adam(module), groups=groups, gradient_sync=lh.GTC(), **SYNC)


class Ordered(nn.Module):
    """Uses its layers in another order on the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second = self.layers if dist.get_rank() == 0 else reversed(self.layers)
        return torch.tanh(first(inputs)) * 2 + torch.tanh(second(inputs))


def other_order() -> None:
    module, groups = Ordered(), lh.Groups(1)
    model, optimizer = DDP(module, process_group=groups.group), adam(module)
    settings = {**SYNC, "warmup_steps": 2}
    blocks = lh.attach(model, optimizer, groups=groups, **settings)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    blocks.step()


def steps_in_backward() -> None:
    module = network()
    own = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}
    for parameter in own:
        parameter.register_post_accumulate_grad_hook(lambda p: own[p].step())
    sync = lh.BMUF(block_size=3)
    lh.attach(module, [*own.values()], groups=lh.Groups(1), block_sync=sync, warmup_steps=2)
    module(torch.ones(3, 4)).sum().backward()


def without_backward() -> None:
    loop = Loop(1, **{**SYNC, "warmup_steps": 2})
    loss = loop.module(torch.ones(3, 4)).sum()
    parameters = [*loop.module.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    loop.optimizer.step()


MISTAKES: Mistakes = {
    "no_process_group": (
        lambda: lh.Groups(1),
        "call torch.distributed.init_process_group() before",
    ),
    "bare": (  # starts the process group for those below
        lambda: Loop(2, wrap="", **SYNC),
        "nothing averages the gradients of the 2 ranks of a group",
    ),
    "too_large": (lambda: lh.Groups(3), "group_size must divide the number of ranks"),
    "divided_in_part": (
        lambda: divide(lambda groups: groups.mesh["group"], 2, slice(1)),
        "the parameter '2.weight' is divided among the ranks [",
    ),
    "divided_over_all": (
        lambda: divide(lambda _: init_device_mesh("cpu", (2,)), 1, slice(None)),
        "the parameter '0.weight' is divided among the ranks [0, 1]",
    ),
    "divided_with_other_buffers": (
        other_buffers,
        "buffer table (1000,) torch.float32 only on rank 1.",
    ),
    "wrapped_twice": (
        lambda: Loop(2, make_module=lambda: DDP(network()), **SYNC),
        "wrapped by DistributedDataParallel twice",
    ),
    "attached_twice": (attach_twice, "has a communication hook already"),
    "lazy": (
        lambda: Loop(1, make_module=lambda: nn.Sequential(nn.LazyLinear(2)), **SYNC),
        "0.weight, 0.bias of a lazy layer has no shape yet",
    ),
    "meta": (
        lambda: Loop(1, make_module=lambda: network().to("meta"), **SYNC),
        "'0.weight' has no values on the meta device",
    ),
    "sparse": (
        lambda: Loop(2, make_module=with_sparse_layer, **SYNC),
        "sparse gradients are not supported, but 3 has sparse=True",
    ),
    "complex": (complex_parameter, "GTC compresses real gradients, but 0 is complex"),
    "buffers_across": (
        lambda: Loop(1, make_module=lambda: nn.BatchNorm1d(4), wrap="world", **SYNC),
        "broadcast_buffers=True of a DistributedDataParallel module over all",
    ),
    "statistics_across": (
        lambda: Loop(1, make_module=lambda: nn.Sequential(nn.SyncBatchNorm(4)), **SYNC),
        "the SyncBatchNorm '0' computes its statistics over the ranks [0, 1]",
    ),
    "unused_across": (
        lambda: Loop(1, wrap="world", ddp={"find_unused_parameters": True}, **SYNC),
        "find_unused_parameters=True of a DistributedDataParallel module over all",
    ),
    "no_synchronisation": (lambda: Loop(1), "block_sync=None needs one group"),
    "optimizers_differ": (
        lambda: Loop(1, make_optimizer=adam_at_another_rate, **SYNC),
        "lr=1",
    ),
    "optimizer_has_more": (
        lambda: Loop(1, make_optimizer=adam_of_a_loss, **SYNC),
        "2 trainable parameters that are not in the module, the first of shape (3, 2)",
    ),
    "zero": (
        lambda: Loop(1, make_optimizer=zero, **SYNC),
        "ZeroRedundancyOptimizer sends the parameters that it has stepped",
    ),
    "settings_differ": (
        lambda: Loop(1, block_sync=lh.BMUF(block_size=3 + dist.get_rank()), warmup_steps=0),
        "block_size",
    ),
    "outer_optimizers_differ": (
        lambda: Loop(1, block_sync=outer_sgd(lr=1 + dist.get_rank()), warmup_steps=0),
        "they differ in outer_optimizer: ",
    ),
    "hook_without_ddp": (
        lambda: Loop(1, gradient_sync=lh.GTC(), **SYNC),
        "needs a module that is wrapped by DistributedDataParallel",
    ),
    "other_order": (other_order, "the same order, but group 0 and group 1 differ"),
    "replaced": (replaced, "was not passed to attach()"),
    "in_backward": (steps_in_backward, "steps within the backward pass, behind which the warm-up"),
    "without_backward": (without_backward, "no backward pass has computed the gradients"),
    "unfrozen": (unfrozen, "2 parameters were unfrozen after attach(), among them '0.bias'"),
    "in_evaluation": (
        steps_in_evaluation,
        "an optimizer steps while the module contains the global model",
    ),
    "after_the_end": (after_the_end, "was called after finish()"),
    "uncounted": (uncounted, "AdamW steps a second time without blocks.step() in between"),
    "attached_anew": (attached_anew, "call finish() or detach() of the first blocks before"),
    "counted_twice": (counted_twice, "OutOfStepError"),  # the last one: ranks stay out of step
}


def test_a_mistake_is_one_error_on_every_rank() -> None:
    for rank in errors_by_rank(__name__, ranks=2):
        for name, (_, message) in MISTAKES.items():
            assert message in rank[name], name


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
