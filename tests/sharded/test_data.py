"""Samplers that do not divide the data among the data-parallel ranks of all groups are noticed."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches
from tests.trainer.fitting import make_trainer

_NEEDED = "DistributedSampler(data, **trainer.strategy.distributed_sampler_kwargs)"


class OwnSampler(Divided):
    """Divides the data by the mesh of its group, or among all ranks."""

    def __init__(self, of_group: bool) -> None:
        super().__init__()
        self.of_group = of_group

    def train_dataloader(self) -> Any:
        data: Any = batches(4, 2).dataset
        mesh: Any = self.device_mesh
        mesh = mesh["data_parallel"]
        parts = {"num_replicas": mesh.size(), "rank": mesh.get_local_rank()}
        own: Any = DistributedSampler(data, **(parts if self.of_group else {}))
        return DataLoader(data, batch_size=2, sampler=own)


def _warnings(of_group: bool, **settings: Any) -> list[str]:
    strategy = lh.HierarchicalModelParallelStrategy(block_sync=lh.DiLoCo(block_size=2), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(strategy).fit(OwnSampler(of_group))
    return [str(own.message) for own in caught if "DistributedSampler" in str(own.message)]


def test_sampler_of_a_group() -> None:
    told, *others = run_ranks(_warnings, 4, True, group_size=2)
    assert len(told) == 1 and not any(others)
    assert told[0].startswith("4 ranks need different batches, but") and "2 parts" in told[0]
    assert _NEEDED in told[0]


def test_sampler_that_divides_a_batch_of_tensor_parallel_ranks() -> None:
    settings = {"group_size": 4, "tensor_parallel_size": 2}
    for said in run_ranks(_warnings, 4, False, **settings, expect_failure=True):
        assert "ranks 0 and 1 are tensor-parallel and must train on the same batches" in said
        assert _NEEDED in said
