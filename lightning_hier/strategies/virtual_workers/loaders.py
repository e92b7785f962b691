"""Data of the virtual workers of a rank: one loader for each, iterated together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lightning.fabric.utilities.data import sized_len
from torch.utils.data import DataLoader

from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.private_names import private

_COMBINED = "lightning.pytorch.utilities.combined_loader"


class WorkerBatches:
    """A batch of each worker of a rank, in their order."""

    def __init__(self, batches: Sequence[Any]) -> None:
        """Store the batches. Not a list, which could be mistaken for a batch with several parts."""
        self.batches = list(batches)

    def of(self, workers: range) -> WorkerBatches:
        """Batches of consecutive workers."""
        return WorkerBatches(self.batches[workers.start : workers.stop])

    def map(self, change: Callable[[Any], Any], random: WorkerRandom) -> WorkerBatches:
        """Apply a function to each batch, with the random state of its worker."""
        changed = []
        for worker, batch in enumerate(self.batches):
            with random.of(worker):
                changed.append(change(batch))
        return WorkerBatches(changed)


class WorkerLoaders:
    """Loaders of all workers of a rank as one loader of :class:`WorkerBatches`.

    Args:
        loaders: one for each worker.
        random: random states of the workers.

    Attributes:
        dataset: data set of all loaders.
        batch_sampler: batch sampler of the first loader.
        sampler: sampler by which Lightning sets the epoch of all loaders.

    """

    def __init__(self, loaders: Sequence[DataLoader[Any]], random: WorkerRandom) -> None:
        """Iterate over the loaders together."""
        self._loaders = list(loaders)
        self._random = random
        # Attributes of a DataLoader that Lightning and `data_checks` read.
        self.dataset = self._loaders[0].dataset
        self.batch_sampler = self._loaders[0].batch_sampler
        self.sampler = _Samplers(self._loaders)

    @property
    def lengths(self) -> list[float]:
        """Number of batches of each worker; inf if the data have no length."""
        lengths = [sized_len(loader) for loader in self._loaders]
        return [float("inf") if length is None else length for length in lengths]

    def __len__(self) -> int:
        """Batches of each worker."""
        return min(map(len, self._loaders))

    def __iter__(self) -> Iterator[WorkerBatches]:
        """Iterate as each worker in turn, until all have run out of batches.

        Raises:
            RuntimeError: only some workers have run out of batches.

        """
        iterators = []
        for worker, loader in enumerate(self._loaders):
            with self._random.of(worker):
                iterators.append(iter(loader))
        drawn = 0
        while True:
            batches, ended = [], []
            # All workers draw, so that an error names how many of them have ended.
            for worker, iterator in enumerate(iterators):
                with self._random.of(worker):
                    try:
                        batches.append(next(iterator))
                    except StopIteration:
                        ended.append(worker)
            if not batches:
                return
            if ended:
                raise RuntimeError(
                    f"after {drawn} batches the data of {len(ended)} of the {len(iterators)} "
                    "workers of this rank have ended, but not those of the others: give every "
                    "worker the same number of batches"
                )
            drawn += 1
            yield WorkerBatches(batches)

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None to end the processes of a DataLoader."""
        return None

    @_iterator.setter
    def _iterator(self, nothing: None) -> None:
        # With persistent_workers, each loader has processes of its own.
        for loader in self._loaders:
            private(_COMBINED, "_shutdown_workers_and_reset_iterator")(loader)


class _Samplers:
    """Takes the place of a sampler, so that Lightning sets the epoch of all loaders."""

    def __init__(self, loaders: Sequence[DataLoader[Any]]) -> None:
        self._loaders = loaders

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all loaders, as Lightning does for the loader of a rank."""
        for loader in self._loaders:
            private("lightning.fabric.utilities.data", "_set_sampler_epoch")(loader, epoch)
