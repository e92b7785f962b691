"""The values of a rank's local model, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.shown_model import ShownModel
from lightning_hier.comm.blocks.trained import TrainedTensors


class LocalValues:
    """Reads the local model that is in the module, or aside while that shows the global one.

    What a hook has written over the values that are shown is local: training goes on from it.
    Nothing is copied or communicated.

    Args:
        trained: what of the module counts.
        models: of this rank; of those only the first is ever aside.
        aside: where it is then.

    """

    def __init__(self, trained: TrainedTensors, models: LocalModels, aside: ShownModel) -> None:
        self._trained = trained
        self._models = models
        self._aside = aside

    def all(self) -> dict[Tensor, Tensor]:
        """Trainable parameters and buffers, each with its local value."""
        return {own: self._of(own) for own in self._trained.tensors()}

    def buffers(self) -> dict[str, Tensor]:
        """Buffers by name, each with its local value."""
        self._models.buffers.reclaim()
        return {name: self._of(own) for own, name in self.buffer_names.items()}

    @property
    def buffer_names(self) -> Mapping[Tensor, str]:
        """The buffers, each with its name."""
        return self._models.buffers.names

    def written(self) -> Sequence[Tensor]:
        """Parameters and buffers that hold something else than what was shown."""
        self._models.buffers.reclaim()
        return self._aside.written()

    def behind_shown(self) -> AbstractContextManager[None]:
        """Load a local model while the module goes on showing the global one that it holds."""
        # What is frozen now may have been trained by the run that is loaded.
        return self._aside.behind(self._trained.tensors(also_frozen=True))

    def _of(self, tensor: Tensor) -> Tensor:
        return self._aside.local(tensor) if self._models.current == 0 else tensor.detach()
