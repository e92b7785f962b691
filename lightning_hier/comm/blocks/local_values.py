"""The values of a rank's local model, wherever they are."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.shown_model import ShownModel
from lightning_hier.comm.blocks.trained import TrainedTensors


class LocalValues:
    """Reads the local model that is in the module, or aside while that shows the global one.

    Nothing is copied or communicated.

    Args:
        trained: what of the module counts.
        models: of this rank; of those only the first is ever aside.

    Attributes:
        aside: where it is then.

    """

    def __init__(self, trained: TrainedTensors, models: LocalModels) -> None:
        self._trained = trained
        self._models = models
        self.aside = ShownModel()

    def all(self) -> dict[Tensor, Tensor]:
        """Trainable parameters and buffers, each with its local value."""
        return {own: self._of(own) for own in self._trained.tensors()}

    def buffers(self) -> dict[str, Tensor]:
        """Buffers by name, each with its local value."""
        self._models.buffers.reclaim()
        return {name: self._of(own) for own, name in self._models.buffers.names.items()}

    def keep_written(self) -> set[Parameter]:
        """Have all local models keep what hooks have written into the global one.

        Returns:
            Trained parameters that have been written; these do not keep it.

        """
        self._models.buffers.reclaim()
        written = self.aside.written()
        trained = self._trained.parameters.intersection(written)
        kept = [(tensor, tensor.data) for tensor in written if tensor not in trained]
        self.aside.keep([tensor for tensor, _ in kept])
        with torch.no_grad():
            for _ in self._models.others():
                for tensor, value in kept:
                    tensor.copy_(value)
        return trained

    def behind_shown(self) -> AbstractContextManager[None]:
        """Load a local model while the module goes on showing the global one that it holds."""
        # What is frozen now may have been trained by the run that is loaded.
        return self.aside.behind(self._trained.tensors(also_frozen=True))

    def _of(self, tensor: Tensor) -> Tensor:
        return self.aside.local(tensor) if self._models.current == 0 else tensor.detach()
