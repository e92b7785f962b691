"""Virtual workers of one rank get the same training data as one rank for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    WeightedRandomSampler,
)

from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.virtual_workers.division import divide_among_workers
from lightning_hier.strategies.virtual_workers.loaders import WorkerLoaders

DATA: Any = list(range(13))


def _divided(
    loader: object, workers: int = 3, request: Callable[[int], object] | None = None
) -> WorkerLoaders:
    random = WorkerRandom(workers, torch.device("cpu"))
    return divide_among_workers(loader, range(workers), workers, random, request)


def _weighted(rank: int, ranks: int, *, seeded: bool) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5) if seeded else None
    drawn = WeightedRandomSampler([1.0 + i for i in DATA], 12, generator=generator)
    sampler = DistributedSamplerWrapper(drawn, num_replicas=ranks, rank=rank, shuffle=False)
    return DataLoader(DATA, batch_size=2, sampler=sampler, generator=generator)


def _epochs(data: Any) -> Iterator[list[list[int]]]:
    """Data of two epochs, of a rank or of each worker."""
    for _ in range(2):
        if isinstance(data, WorkerLoaders):
            rounds = [batch.batches for batch in data]
            yield [torch.cat(own).tolist() for own in zip(*rounds, strict=True)]
        else:
            yield [torch.cat(list(data)).tolist()]


@pytest.mark.parametrize("seeded", [True, False])
def test_random_samplers_give_each_worker_the_data_of_its_rank(seeded: bool) -> None:
    """All workers share the order of an epoch, drawn by the sampler's or by torch's generator."""
    torch.manual_seed(3)
    epochs = list(_epochs(_divided(_weighted(0, 1, seeded=seeded))))
    expected: list[list[list[int]]] = [[], []]
    for rank in range(3):
        torch.manual_seed(3)
        for epoch, own in enumerate(_epochs(_weighted(rank, 3, seeded=seeded))):
            expected[epoch] += own
    assert epochs == expected and epochs[0] != epochs[1]


class _ShuffledBatches(BatchSampler):
    """Draws the order of its batches from a generator of its own."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(DistributedSampler(DATA, ranks, rank, shuffle=False), 1, False)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        order = torch.randperm(len(batches), generator=self.generator)
        return iter([batches[i] for i in order])


def test_batch_samplers_of_workers_draw_from_generators_of_their_own() -> None:
    divided = _divided(DataLoader(DATA, batch_sampler=_ShuffledBatches(0, 1)))
    ranks = [DataLoader(DATA, batch_sampler=_ShuffledBatches(rank, 3)) for rank in range(3)]
    expected = [[own for (own,) in epoch] for epoch in zip(*map(_epochs, ranks), strict=True)]
    assert list(_epochs(divided)) == expected


def test_sampler_with_another_division_than_by_rank_is_an_error() -> None:
    sampler: Any = DistributedSampler(DATA, num_replicas=2, rank=1)  # for example within a host
    with pytest.raises(ValueError, match="rank 0 of 1 has num_replicas=2 and rank=1"):
        _divided(DataLoader(DATA, sampler=sampler))


class _Batches:
    """Batch sampler without ``set_epoch`` and with a wrong length, even or uneven."""

    def __init__(self, rank: int = 0, ranks: int = 1, *, even: bool = True) -> None:
        self.num_replicas, self.rank, self.even = ranks, rank, even

    def __iter__(self) -> Iterator[list[int]]:
        count = 12 if self.even else 13
        return ([item] for item in DATA[:count][self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return 90 // self.num_replicas


def _requested(*, even: bool) -> WorkerLoaders:
    def make(rank: int, ranks: int = 3) -> DataLoader[Any]:
        sampler: Any = _Batches(rank, ranks, even=even)
        return DataLoader(DATA, batch_sampler=sampler)

    return _divided(make(0, 1), request=make)


def test_an_epoch_ends_with_the_data_of_all_workers() -> None:
    data = _requested(even=True)
    data.sampler.set_epoch(1)  # these samplers have no set_epoch
    assert len(data) == 30 and len(list(data)) == 4
    with pytest.raises(RuntimeError, match="after 4 batches the data of 2 of the 3 workers"):
        list(_requested(even=False))
