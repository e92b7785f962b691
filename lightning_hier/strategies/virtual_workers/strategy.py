"""The part of a synchronous strategy by which a rank plays several workers."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from typing_extensions import override

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.strategies.checkpoints.checkpointed import CheckpointedStrategy
from lightning_hier.strategies.virtual_workers.checks import (
    check_optimizers,
    loaders_problem,
    virtual_problem,
)


class PlayingStrategy(CheckpointedStrategy):
    """A strategy whose ranks play ``virtual_workers`` in turns while they train.

    Lightning trains on one batch after the other; where a rank plays several workers each of these
    is a batch of each worker.

    What needs private names of Lightning is imported where there are several workers: a release
    that lacks one of them stops nobody else.
    """

    _asks_for: int | None = None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING and self.virtual_workers > 1:
            problem = virtual_problem(trainer, self._worker_counts, warms_up=self.warmup_steps > 0)
            raise_everywhere(problem, self.root_device)
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING and self.virtual_workers > 1:
            check_optimizers(self.optimizers)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """The loader; in training, one for each worker that this rank plays."""
        loader = super().process_dataloader(dataloader)
        if self.virtual_workers == 1 or not self._module.trainer.training:
            return loader
        from lightning_hier.strategies.virtual_workers.division import (
            NotDividedError,
            divide_among_workers,
        )

        source = self._module.trainer.fit_loop._data_source
        problem, divided = None, None
        try:
            divided = divide_among_workers(
                loader,
                self._workers,
                self._all_workers,
                self._fit_session.random,
                self._request_loader if source.is_module() else None,
            )
        except NotDividedError as error:
            problem = str(error)
        raise_everywhere(problem, self.root_device)
        return divided

    @override
    def on_train_start(self) -> None:
        if self.virtual_workers > 1:
            raise_everywhere(loaders_problem(self._module.trainer), self.root_device)
        super().on_train_start()

    @override
    def _batch_counts(self) -> list[float]:
        """Of every worker that this rank plays."""
        if self.virtual_workers == 1:
            return super()._batch_counts()
        from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches

        from lightning_hier.strategies.virtual_workers.loaders import WorkerLoaders

        trainer = self._module.trainer
        data = trainer.train_dataloader
        if not isinstance(data, WorkerLoaders):
            return super()._batch_counts()
        limit = trainer.limit_train_batches
        return [_parse_num_batches(RunningStage.TRAINING, own, limit) for own in data.lengths]

    def _request_loader(self, number: int) -> object:
        """Have the user's ``train_dataloader`` make what the rank of one worker would get."""
        from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader

        self._asks_for = number
        try:
            made = _request_dataloader(self._module.trainer.fit_loop._data_source)
        finally:
            self._asks_for = None
        found = CombinedLoader(made).flattened
        return found[0] if len(found) == 1 else None

    @property
    @override
    def global_rank(self) -> int:
        """Of this process; while a worker's data are asked for, what its rank would be."""
        return super().global_rank if self._asks_for is None else self._asks_for

    @property
    @override
    def world_size(self) -> int:
        """Number of ranks; while a worker's data are asked for, that of all workers."""
        ranks = super().world_size
        return ranks if self._asks_for is None else ranks * self.virtual_workers

    @override
    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """The batch on the rank's device; where it is one of each worker, each as its worker."""
        move = super().batch_to_device
        if self.virtual_workers == 1:
            return move(batch, device, dataloader_idx)
        from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches

        if not isinstance(batch, WorkerBatches):
            return move(batch, device, dataloader_idx)
        convert = self.precision_plugin.convert_input  # Lightning's has left them as they are
        return batch.map(
            lambda own: move(convert(own), device, dataloader_idx), self._fit_session.random
        )
