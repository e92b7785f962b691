"""Averages of weights (EMA) of Lightning's callbacks, with one average for all ranks in evaluation.

After a step, such a callback sees the local model, so every group has its own average, and with GTC
of updates every rank. An average over steps is linear in the models, so the mean of these averages
over the ranks is the average of their mean model. This one is validated, saved and left in the
module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks.weight_averaging import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from lightning_hier.callbacks.packages import both
from lightning_hier.comm.blocks.saved_tensors import SavedTensors
from lightning_hier.comm.broadcast import average_tensors_
from lightning_hier.comm.communicators import Communicators

KIND = "averages"


class AveragedWeights(Callback):
    """Puts the mean of the ranks' averages into the callbacks when Lightning validates or saves.

    It runs before the callbacks of the Trainer. Afterwards, their own average is restored bit for
    bit, so that evaluation does not affect training.

    Args:
        trainer: Trainer whose callbacks to process.
        communicators: channels of this rank.

    """

    def __init__(self, trainer: pl.Trainer, communicators: Communicators) -> None:
        self._trainer = trainer
        self._communicators = communicators
        self._own = SavedTensors()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the callbacks validate the mean of the ranks' averages."""
        if not trainer.sanity_checking:
            self._swap_in()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore this rank's average. The callbacks have removed the mean from the module."""
        self._own.restore()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the callbacks leave the mean of the ranks' averages in the module."""
        self._swap_in()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the mean of the ranks' averages into the callbacks while the body runs.

        A collective of the world, unless the callbacks already contain this mean.
        """
        # During validation and after training, the mean stays when a save has ended.
        already = self._own.used
        self._swap_in()
        try:
            yield
        finally:
            if not already:
                self._own.restore()

    def of_group(self) -> list[dict[str, Tensor]]:
        """Averages of parameters, not copied. With GTC of updates, each rank has its own."""
        return [
            self._values(dict(averaged.named_parameters())) for averaged in self._averaged_models()
        ]

    def of_rank(self) -> list[dict[str, Tensor]]:
        """Averages of buffers, and the number of averaged models. Not copied."""
        return [
            self._values(dict(averaged.named_buffers())) for averaged in self._averaged_models()
        ]

    @torch.no_grad()
    def load(self, *parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Load the results of :meth:`of_group` and :meth:`of_rank`.

        Does nothing if the saved run had other callbacks. Lightning warns about them.
        """
        models = self._averaged_models()
        for part in parts:
            if len(part) != len(models):
                continue
            for averaged, saved in zip(models, part, strict=True):
                tensors = dict(chain(averaged.named_parameters(), averaged.named_buffers()))
                for name, value in saved.items():
                    tensors[name].copy_(value)

    def _averaged_models(self) -> list[AveragedModel]:
        callbacks: list[Any] = self._trainer.callbacks  # type: ignore[attr-defined]
        models = [c._average_model for c in callbacks if isinstance(c, both(WeightAveraging))]
        # Lightning creates the averages when it sets up a fit, so there are none before.
        return [averaged for averaged in models if averaged is not None]

    def _values(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._own.local(tensor) for name, tensor in tensors.items()}

    def _swap_in(self) -> None:
        if self._own.used:
            return
        models = self._averaged_models()
        tensors = [t for m in models for t in chain(m.parameters(), m.buffers())]
        with self._own.overwriting(tensors):
            if tensors:
                place = "the evaluation of averaged weights"
                with self._communicators.progress.at(place), torch.no_grad():
                    _average_(tensors, self._communicators)


def _average_(tensors: Sequence[Tensor], communicators: Communicators) -> None:
    """Average over all ranks, in place. Integers are those of rank 0.

    The tensors may be on another device than the collectives.
    """
    moved = [tensor.detach().to(communicators.device) for tensor in tensors]
    average_tensors_(moved, communicators.world, KIND)
    for tensor, value in zip(tensors, moved, strict=True):
        tensor.copy_(value)
