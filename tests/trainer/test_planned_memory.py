"""Tests that the planner's memory equals the memory of block synchronisation on real ranks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lightning_hier as lh
from benchmarks.performance.memory import tensor_bytes
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.update_exchange import UpdateExchange
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import GradientMemory, Worker
from lightning_hier.planning import Link, Network, Settings, Workload
from lightning_hier.planning.strategies import (
    _training_memory_bytes,
    synchronisation_memory_bytes,
)
from tests.ranks import run_ranks

# Fragments and their chunks consist of whole quantisation groups.
LAYERS, EACH = 4, 1 << 16
LINK = Link(bytes_per_second=1e9)
HOSTS = Network(hosts=2, devices=1, within=LINK, between=LINK)
NET = Workload(parameters=LAYERS * EACH, step_s=1.0, optimizer="adam")

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "model_averaging": (lh.ModelAveraging, {}),
    "bmuf": (lh.BMUF, {"across_dtype": "int4", "fragments": 4}),
    "bmuf_adam": (lh.BMUFAdam, {"moments_every": 3, "across_dtype": "int8", "overlap": 4}),
    "diloco": (lh.DiLoCo, {"fragments": 4, "overlap": 2, "across_density": 0.02}),
}


def _held() -> dict[str, int]:
    dist.init_process_group("gloo")
    return {name: _added(make(block_size=8, **case)) for name, (make, case) in CASES.items()}


def _added(config: Any) -> int:
    """Bytes of tensors that block synchronisation adds to the model and the state of Adam."""
    module = nn.ParameterList(nn.Parameter(torch.zeros(EACH)) for _ in range(LAYERS))
    optimizer = torch.optim.Adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    worker = Worker()
    worker.count_optimizers(1)
    communicators = Communicators.build(
        RankLayout.two_tiers(1, 2),
        device=torch.device("cpu"),
        timeout=timedelta(seconds=100),
        traffic=Traffic(),
        host_of=[0, 1],
    )
    before = tensor_bytes()
    blocks = BlockSynchroniser(
        module, [optimizer], config, communicators=communicators, worker=worker
    )
    blocks.before_step()
    return tensor_bytes() - before


def _with_updates() -> tuple[int, int]:
    """Bytes that GTC of updates holds beside the model: between steps, and most in an exchange."""
    dist.init_process_group("gloo")
    module = nn.ParameterList(nn.Parameter(torch.zeros(EACH)) for _ in range(LAYERS))
    optimizer = torch.optim.Adam(module.parameters())
    layout, device = RankLayout.two_tiers(2, 2), torch.device("cpu")
    settings: Any = {"timeout": timedelta(seconds=100), "traffic": Traffic(), "host_of": [0, 1]}
    group = Communicators.build(layout, device=device, **settings).group
    updates = UpdateExchange(group, lh.GTC(density=0.01), GradientMemory(), [optimizer])
    most = []
    reduce = updates._reducer.reduce

    def counted(bucket: Any) -> Any:
        most.append(tensor_bytes())
        return reduce(bucket)

    updates._reducer.reduce = counted  # type: ignore[method-assign]
    before = tensor_bytes()
    for _ in range(2):
        with updates.stepping(0), torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(EACH))
        updates.exchange(0)
    return tensor_bytes() - before, max(most) - before


def test_memory_of_updates() -> None:
    """The residual and x, and in an exchange the updates."""
    held = replace(NET, optimizer="sgd"), replace(NET, optimizer="adam")
    settings = Settings(group_size=2, density=0.01)
    of_gradients, of_updates = (_training_memory_bytes(net, settings) for net in held)
    states = held[1].state_bytes - held[0].state_bytes
    model = NET.parameters * 4
    assert of_updates - of_gradients - states == 2 * model
    for between, most in run_ranks(_with_updates, 2, ranks_per_node=1):
        assert between == pytest.approx(2 * model, rel=0.05)
        assert most == pytest.approx(3 * model, rel=0.05)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, int]]:
    return run_ranks(_held, 2, ranks_per_node=1)


@pytest.mark.parametrize("name", CASES)
def test_memory(ranks: list[dict[str, int]], name: str) -> None:
    settings: Any = {"block_sync": name, **CASES[name][1]}
    planned = synchronisation_memory_bytes(NET, HOSTS, Settings(**settings))
    for rank in ranks:
        assert rank[name] == pytest.approx(planned, rel=0.001)
