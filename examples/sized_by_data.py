"""A model whose input and output sizes are given, or taken from the data that it is trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import LightningModule


class SizedByData(LightningModule, ABC):
    """Makes its layers once its sizes are known.

    Where all are given, that is in the constructor, and the model works by itself. Otherwise it is
    in ``configure_model``, which Lightning calls on every rank once the data are set up and before
    a strategy sees the model. Sizes that were found are hyperparameters from then on, so that
    ``load_from_checkpoint`` needs no data.
    """

    def take_sizes(self, **sizes: int | None) -> None:
        """Make the layers, if all sizes are known.

        Call it at the end of a constructor, after ``save_hyperparameters``.

        Args:
            sizes: by the names of the hyperparameters; None for those to be taken from the data.

        Raises:
            ValueError: a size below 1, or of which no layers can be made.
        """
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self._sizes = sizes
        self._is_built = False
        if None not in sizes.values():
            self._build(**sizes)
            self._is_built = True

    def configure_model(self) -> None:
        """Make the layers, if they have not been made yet.

        Raises:
            ValueError: sizes were not given, and the Trainer has no data module to ask.
        """
        if self._is_built:
            return
        data = getattr(self._trainer, "datamodule", None)
        if data is None:
            unknown = ", ".join(name for name, size in self._sizes.items() if size is None)
            raise ValueError(
                f"{unknown} of {type(self).__name__} must be given where no data module of a "
                "Trainer can tell"
            )
        found = self._sizes_of(data)
        sizes = {name: found[name] if size is None else size for name, size in self._sizes.items()}
        self.save_hyperparameters(sizes)
        self.take_sizes(**sizes)

    @abstractmethod
    def _build(self, *args: Any, **sizes: Any) -> None:
        """Make what depends on the sizes."""

    @abstractmethod
    def _sizes_of(self, data: Any) -> dict[str, int]:
        """The sizes that a data module asks for."""
