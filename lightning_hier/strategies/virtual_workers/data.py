"""The training data of the virtual workers of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.strategies.private_names import private
from lightning_hier.strategies.virtual_workers.division import divide_among_workers
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches, WorkerLoaders

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


_CONNECTOR = "lightning.pytorch.trainer.connectors.data_connector"


class WorkerData:
    """Divides training data among all workers, as Lightning does among ranks.

    Attributes:
        requested: the worker for which ``train_dataloader`` makes a loader now, or None.

    """

    def __init__(self) -> None:
        """No loader is requested."""
        self.requested: int | None = None

    def divide(self, loader: object, session: FitSession) -> object:
        """Return one loader for each worker of this rank. A collective of the world.

        Raises:
            ValueError: on every rank, if a loader does not tell how it is divided.

        """
        trainer = session.trainer
        source = trainer.fit_loop._data_source

        def request(number: int) -> object:
            with self._requesting(number):
                return _request_loader(trainer)

        with raise_everywhere(session.communicators.device):
            return divide_among_workers(
                loader,
                session.numbers,
                session.worker_layout.world_size,
                session.random,
                request if source.is_module() else None,
            )

    @contextmanager
    def _requesting(self, number: int) -> Iterator[None]:
        self.requested = number
        try:
            yield
        finally:
            self.requested = None


def _request_loader(trainer: pl.Trainer) -> object:
    """Have the user's ``train_dataloader`` make one loader, or None if it makes several."""
    request = private(_CONNECTOR, "_request_dataloader")
    made = CombinedLoader(request(trainer.fit_loop._data_source)).flattened
    return made[0] if len(made) == 1 else None


def batch_counts(trainer: pl.Trainer) -> list[float]:
    """Return the number of training batches of each worker of this rank."""
    count = private(_CONNECTOR, "_parse_num_batches")
    data = trainer.train_dataloader
    if not isinstance(data, WorkerLoaders):
        return [trainer.num_training_batches]
    limit = trainer.limit_train_batches
    return [count(RunningStage.TRAINING, own, limit) for own in data.lengths]


def move_batches(batch: Any, move: Callable[[Any], Any], session: FitSession | None) -> Any:
    """Move a batch to the rank's device; if it has one of each worker, each as its worker."""
    if session is None or not isinstance(batch, WorkerBatches):
        return move(batch)
    # Lightning converts the precision of tensors, and does not look into WorkerBatches.
    convert = session.trainer.precision_plugin.convert_input
    return batch.map(lambda own: move(convert(own)), session.random)
