"""Divides the training data among all workers, as Lightning divides them among ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, DistributedSampler

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.private_names import check_names, private
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches, WorkerLoaders

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


class WorkerData:
    """Divides the loaders of a session among the workers of its rank.

    Attributes:
        requested: worker for which ``train_dataloader`` is being called, or None.

    """

    def __init__(self) -> None:
        self.requested: int | None = None

    def divide(self, loader: object, session: FitSession) -> object:
        """Return one loader for each worker of this rank. A collective of the world.

        Raises:
            ValueError: on every rank, if it is unknown how a loader is divided.

        """
        source = session.trainer.fit_loop._data_source
        request = private(
            "lightning.pytorch.trainer.connectors.data_connector", "_request_dataloader"
        )

        def make_loader(number: int) -> object:
            # The strategy returns this number as its rank, so the user's code divides by workers.
            self.requested = number
            try:
                loaders = CombinedLoader(request(source)).flattened
            finally:
                self.requested = None
            return loaders[0] if len(loaders) == 1 else None

        with raise_everywhere(session.communicators.device):
            return divide_among_workers(
                loader,
                session.worker_numbers,
                session.worker_layout.world_size,
                session.random,
                make_loader if source.is_module() else None,
            )

    def move(self, batch: Any, move: Callable[[Any], Any], session: FitSession) -> Any:
        """Move a batch, or the batch of each worker in turn, to the device of the rank."""
        if not isinstance(batch, WorkerBatches):
            return move(batch)
        # Lightning converts the precision of tensors, but does not support WorkerBatches.
        convert = session.trainer.precision_plugin.convert_input
        return batch.map(lambda one: move(convert(one)), session.random)


def divide_among_workers(
    loader: object,
    workers: range,
    total: int,
    random: WorkerRandom,
    request: Callable[[int], object] | None,
) -> WorkerLoaders:
    """Give every worker of a rank the data of a separate rank.

    Args:
        loader: loader of this rank. Its sampler determines its part of the data.
        workers: numbers of the workers of this rank.
        total: number of all workers.
        random: random states of the workers of this rank.
        request: requests the loader of one worker from the module or its data.

    Raises:
        ValueError: it is unknown how the data are divided among ranks, or they are divided
            differently.

    """
    sampler = _divided_by(loader) if isinstance(loader, DataLoader) else None
    if not isinstance(loader, DataLoader) or sampler is None:
        raise ValueError(
            f"virtual_workers={len(workers)} divides the training data among {total} workers, and "
            f"it is unknown how {type(loader).__name__} is divided among ranks: use a DataLoader "
            "of a map-style dataset with use_distributed_sampler=True, or a sampler or "
            "batch_sampler with the attributes num_replicas and rank"
        )
    rank, ranks = workers.start // len(workers), total // len(workers)
    if (sampler.num_replicas, sampler.rank) != (ranks, rank):
        raise ValueError(
            f"virtual_workers={len(workers)} divides the training data among {total} workers, and "
            f"{type(sampler).__name__} divides them differently: rank {rank} of {ranks} has "
            f"num_replicas={sampler.num_replicas} and rank={sampler.rank}. Leave "
            "use_distributed_sampler=True, divide them by trainer.world_size and "
            "trainer.global_rank, or start one rank per worker"
        )
    loaders = []
    for turn, number in enumerate(workers):
        if _divides_by_attributes(sampler):
            loaders.append(_for_worker(loader, sampler, number, total))
            continue
        # The user's code may draw random numbers, as on a rank of its own.
        with random.of(turn):
            loaders.append(_requested(request, number, total, sampler))
    return WorkerLoaders(loaders, random)


def _divides_by_attributes(sampler: Any) -> bool:
    """Whether it is known that a copy with other numbers divides the data among workers.

    The constructor of another sampler may divide the data. Its attributes would have no effect.
    """
    plain = type(sampler).__init__ is DistributedSampler.__init__
    return isinstance(sampler, DistributedSamplerWrapper) or plain


def _requested(
    request: Callable[[int], object] | None, number: int, total: int, sampler: object
) -> DataLoader[Any]:
    loader = None if request is None else request(number)
    divided = _divided_by(loader) if isinstance(loader, DataLoader) else None
    if divided is None or (divided.num_replicas, divided.rank) != (total, number):
        raise ValueError(
            f"the sampler {type(sampler).__name__} may divide the training data when it is "
            f"created, so each of {total} workers needs its own: create the loader in "
            "train_dataloader of the LightningModule or LightningDataModule, with "
            "trainer.global_rank and trainer.world_size as rank and number of ranks"
        )
    assert isinstance(loader, DataLoader)
    _seed_loader(loader, number)
    return loader


def _seed_loader(loader: DataLoader[Any], worker: int) -> None:
    """Seed the processes of a loader, as Lightning does for a rank."""
    private("lightning.fabric.utilities.data", "_auto_add_worker_init_fn")(loader, worker)


def _divided_by(loader: DataLoader[Any]) -> Any:
    """The sampler that selects this rank's part of the data, or None."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    for sampler in (loader.batch_sampler, loader.sampler, inner):
        if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
            return sampler
    return None


def _for_worker(
    loader: DataLoader[Any], sampler: Any, worker: int, workers: int
) -> DataLoader[Any]:
    # One object for all copies, because loader and samplers may share a generator.
    generators = OwnGenerators()
    divided = _copy_for_worker(sampler, worker, workers, generators)
    copied = generators.copied(loader)
    # A DataLoader does not allow these attributes to be set.
    if loader.batch_sampler is sampler:
        copied.__dict__["batch_sampler"] = divided
    else:
        copied.__dict__["sampler"] = divided
        if loader.batch_sampler is not None:
            copied.__dict__["batch_sampler"] = generators.copied(loader.batch_sampler)
            copied.batch_sampler.__dict__["sampler"] = divided
    _seed_loader(copied, worker)
    return copied


def _copy_for_worker(sampler: Any, worker: int, workers: int, generators: OwnGenerators) -> Any:
    """Copy a sampler such that it divides the data among workers."""
    divided = generators.copied(sampler)
    data: Any = sampler.dataset
    if isinstance(sampler, DistributedSamplerWrapper):
        # This wrapper caches the order of an epoch, which its inner sampler draws.
        check_names(data)
        wrapper = private("lightning.fabric.utilities.distributed", "_DatasetSamplerWrapper")
        data = wrapper(generators.copied(data._sampler))
    # Its constructor computes num_samples and total_size from these numbers.
    DistributedSampler.__init__(
        divided, data, workers, worker, sampler.shuffle, sampler.seed, sampler.drop_last
    )
    return divided


_Thing = TypeVar("_Thing")


class OwnGenerators:
    """Copies objects with new generators in the same state. Shared generators stay shared."""

    def __init__(self) -> None:
        self._copies: dict[int, object] = {}

    def copied(self, thing: _Thing) -> _Thing:
        """A shallow copy, except for generators among the attributes."""
        copied = copy(thing)
        for name, value in list(getattr(copied, "__dict__", {}).items()):
            copied.__dict__[name] = self._of(value)
        return copied

    def _of(self, value: object) -> object:
        if isinstance(value, torch.Generator):
            generator = torch.Generator(value.device)
            generator.set_state(value.get_state())
            return self._copies.setdefault(id(value), generator)
        if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
            return self._copies.setdefault(id(value), deepcopy(value))
        return value
