"""The data of the workers that one rank plays: a loader for each, read side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

from lightning.fabric.utilities.data import _auto_add_worker_init_fn
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import DataLoader, DistributedSampler

from lightning_hier.comm.worker_random import WorkerRandom


class WorkerBatches:
    """A batch of each worker of a rank, in their order."""

    def __init__(self, batches: Sequence[Any]) -> None:
        """Hold them. No list, so that nobody takes them for one batch with several parts."""
        self.batches = list(batches)

    def of(self, workers: range) -> WorkerBatches:
        """Those of workers that follow each other."""
        return WorkerBatches(self.batches[workers.start : workers.stop])

    def map(self, change: Callable[[Any], Any], random: WorkerRandom) -> WorkerBatches:
        """Each changed by a function that draws as its worker."""
        changed = []
        for worker, batch in enumerate(self.batches):
            with random.of(worker):
                changed.append(change(batch))
        return WorkerBatches(changed)


class WorkerLoaders:
    """Loaders of all workers of a rank as one, which gives :class:`WorkerBatches`.

    Args:
        loaders: one for each worker.
        random: what they draw from.

    """

    def __init__(self, loaders: Sequence[DataLoader[Any]], random: WorkerRandom) -> None:
        """Read them side by side."""
        self._loaders = list(loaders)
        self._random = random
        self.sampler = _Samplers(self._loaders)  # Lightning tells it the epoch

    def __len__(self) -> int:
        """Batches of each worker."""
        return min(map(len, self._loaders))

    def __iter__(self) -> Iterator[WorkerBatches]:
        """Draw as each worker in turn."""
        iterators = []
        for worker, loader in enumerate(self._loaders):
            with self._random.of(worker):
                iterators.append(iter(loader))
        for _ in range(len(self)):
            batches = []
            for worker, iterator in enumerate(iterators):
                with self._random.of(worker):
                    batches.append(next(iterator))
            yield WorkerBatches(batches)


class _Samplers:
    def __init__(self, loaders: Sequence[DataLoader[Any]]) -> None:
        self._loaders = loaders

    def set_epoch(self, epoch: int) -> None:
        for loader in self._loaders:
            sampler = _divided_by(loader)
            if sampler is not None:
                sampler.set_epoch(epoch)


def divide_among_workers(
    loader: object,
    workers: range,
    total: int,
    random: WorkerRandom,
    request: Callable[[int], object] | None,
) -> WorkerLoaders:
    """Give every worker of a rank the data that a rank of its own would have.

    Args:
        loader: of this rank, whose sampler says which part of the data it is.
        workers: numbers of the workers of this rank.
        total: number of all workers.
        random: what the workers of this rank draw from.
        request: asks the module or its data for the loader of one worker, where they make it.

    Raises:
        ValueError: nothing tells how the data are divided among ranks.

    """
    sampler = _divided_by(loader) if isinstance(loader, DataLoader) else None
    if not isinstance(loader, DataLoader) or sampler is None:
        raise ValueError(
            f"virtual_workers={len(workers)} divides the training data among {total} workers, and "
            f"{type(loader).__name__} does not tell how it is divided among ranks: give a "
            "DataLoader of a map-style dataset and leave use_distributed_sampler=True, or give its "
            "sampler or batch_sampler the attributes num_replicas and rank, by which it divides "
            "them whenever it is iterated over"
        )
    own = []
    for turn, number in enumerate(workers):
        if _divides_when_made(sampler):
            with random.of(turn):
                own.append(_requested(request, number, total, sampler))
        else:
            own.append(_for_worker(loader, sampler, number, total))
    return WorkerLoaders(own, random)


def _divides_when_made(sampler: object) -> bool:
    """Whether a sampler may have divided the data already, so that it can't be told to anew."""
    if not isinstance(sampler, DistributedSampler):
        return False
    plain = type(sampler).__init__ is DistributedSampler.__init__
    return not plain and not isinstance(sampler, DistributedSamplerWrapper)


def _requested(
    request: Callable[[int], object] | None, number: int, total: int, sampler: object
) -> DataLoader[Any]:
    loader = None if request is None else request(number)
    own = _divided_by(loader) if isinstance(loader, DataLoader) else None
    if own is None or (own.num_replicas, own.rank) != (total, number):
        raise ValueError(
            f"the sampler {type(sampler).__name__} divides the training data when it is made, so "
            f"it has to be made for each of {total} workers: have one loader made in "
            "train_dataloader of the LightningModule or LightningDataModule, with the rank and the "
            "number of ranks from trainer.global_rank and trainer.world_size"
        )
    assert isinstance(loader, DataLoader)
    _auto_add_worker_init_fn(loader, number)
    return loader


def _divided_by(loader: DataLoader[Any]) -> Any:
    """The sampler that picks this rank's part, or None."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    for sampler in (loader.batch_sampler, loader.sampler, inner):
        if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
            return sampler
    return None


def _for_worker(
    loader: DataLoader[Any], sampler: Any, worker: int, workers: int
) -> DataLoader[Any]:
    own, made = copy(sampler), copy(loader)
    if isinstance(own, DistributedSampler):
        DistributedSampler.__init__(
            own, sampler.dataset, workers, worker, sampler.shuffle, sampler.seed, sampler.drop_last
        )
    else:
        own.num_replicas, own.rank = workers, worker
    # A DataLoader refuses to have them set.
    if loader.batch_sampler is sampler:
        made.__dict__["batch_sampler"] = own
    else:
        made.__dict__["sampler"] = own
        if loader.batch_sampler is not None:
            made.__dict__["batch_sampler"] = copy(loader.batch_sampler)
            made.batch_sampler.__dict__["sampler"] = own
    _auto_add_worker_init_fn(made, worker)
    return made
