"""Tests how a strategy finds the hosts and devices of its ranks, also in Ray."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

from lightning_hier import BMUFStrategy
from lightning_hier.loop.groups import ranks_of_group
from lightning_hier.strategies.launch import unbind_from_device
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, fit_on_ranks, loader, make_trainer, this_rank, weights


@pytest.mark.parametrize(
    ("hosts", "fits"),
    [
        ([0], True),
        ([0, 0, 1, 1], True),
        ([0, 1, 2], True),
        ([0, 0, 1], False),
        ([0, 1, 1], False),
        ([0, 1, 0, 1], False),
    ],
)
def test_hosts_are_groups_where_they_are_filled_evenly(hosts: list[int], fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(ValueError, match="consecutive ranks"):
        ranks_of_group("node", hosts)


def _create_a_group_in_a_bound_world() -> None:
    dist.init_process_group("gloo")
    world = dist.distributed_c10d._get_default_group()
    world.bound_device_id = torch.device("cuda", 0)  # as Lightning does on a GPU
    unbind_from_device()
    dist.new_group([0])  # fails on rank 1 if the world is bound to a device
    dist.destroy_process_group()


def test_groups_can_be_created_in_a_world_over_gloo_on_gpus() -> None:
    run_ranks(_create_a_group_in_a_bound_world, 2)


def _stand_in_for_ray() -> Any:
    """Replace the modules of Ray that strategies use. Answers come from torchrun's variables."""

    class Environment(LightningEnvironment):
        def world_size(self) -> int:
            return int(os.environ["WORLD_SIZE"])

        def global_rank(self) -> int:
            return this_rank()

        def set_world_size(self, size: int) -> None:
            """Do nothing, as Ray sets the world size."""

        def set_global_rank(self, rank: int) -> None:
            """Do nothing, as Ray sets the rank."""

    ray, train, ray_torch, ray_lightning = (
        ModuleType(name) for name in ("ray", "ray.train", "ray.train.torch", "ray.train.lightning")
    )
    train.get_context = lambda: SimpleNamespace(
        get_local_world_size=lambda: int(os.environ["LOCAL_WORLD_SIZE"]),
        get_node_rank=lambda: int(os.environ["NODE_RANK"]),
    )
    ray_torch.get_device = lambda: torch.device("cpu")
    ray_lightning.RayLightningEnvironment = Environment
    ray_lightning.RayDDPStrategy = type("RayDDPStrategy", (DDPStrategy,), {})
    sys.modules.update(
        {module.__name__: module for module in (ray, train, ray_torch, ray_lightning)}
    )
    return ray_lightning


def _fit_as_a_worker_of_ray() -> Any:
    ray_lightning = _stand_in_for_ray()
    dist.init_process_group("gloo")
    model = Net()
    environment = ray_lightning.RayLightningEnvironment()
    trainer = make_trainer("bmuf_gtc", devices="auto", num_nodes=1, plugins=[environment])
    assert isinstance(trainer.strategy, ray_lightning.RayDDPStrategy)
    trainer.fit(model, loader(6))
    return trainer.strategy.layout.sizes, weights(model)


def test_devices_hosts_and_division_of_data_come_from_ray() -> None:
    """This test needs no installation of Ray. `test_ray` uses the real Ray."""
    results = run_ranks(_fit_as_a_worker_of_ray, 4, ranks_per_node=2)
    expected = fit_on_ranks(4, "bmuf_gtc", ranks_per_node=2)
    for (sizes, model), plain in zip(results, expected, strict=True):
        assert sizes == (2, 2)
        assert torch.equal(model, plain.weights)


def _share_devices_in_ray() -> None:
    environment = _stand_in_for_ray().RayLightningEnvironment()
    make_trainer(BMUFStrategy(ranks_per_device=2), plugins=[environment])


def test_ranks_cannot_share_a_device_of_ray() -> None:
    for error in run_ranks(_share_devices_in_ray, 2, expect_failure=True):
        assert error.startswith("ValueError: ranks_per_device=2 can't be used in Ray Train")
        assert "resources_per_worker={'GPU': 0.5}" in error


def _fit_with_too_few_ranks_in_the_trainer() -> None:
    dist.init_process_group("gloo")
    fit("bmuf", devices=1, num_nodes=1, plugins=[LightningEnvironment()])


def test_trainer_with_fewer_ranks_than_the_process_group_is_an_error() -> None:
    errors = run_ranks(_fit_with_too_few_ranks_in_the_trainer, 2, expect_failure=True)
    for error in errors:
        assert error.startswith(
            "ValueError: the Trainer counts 1 rank, but the process group has 2"
        )
