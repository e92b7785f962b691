"""Base class of models whose input and output sizes are arguments, or depend on the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import LightningModule


class SizedByData(LightningModule, ABC):
    """Model that creates its layers in the constructor, or when the sizes of the data are known.

    If all sizes are arguments, the constructor creates the layers. Otherwise, ``configure_model``
    creates them. Lightning calls it on every rank, after the data module has been set up and before
    the strategy sets up the model. Then the sizes are hyperparameters, so ``load_from_checkpoint``
    needs no data.
    """

    def take_sizes(self, **sizes: int | None) -> None:
        """Create the layers if all sizes are known.

        Call it at the end of the constructor, after ``save_hyperparameters``.

        Args:
            sizes: sizes by the names of the hyperparameters. None: taken from the data.

        Raises:
            ValueError: a size is below 1, or the layers cannot have these sizes.
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
        """Create the layers if they do not exist.

        Raises:
            ValueError: sizes are missing, and the Trainer has no data module.
        """
        if self._is_built:
            return
        data = getattr(self._trainer, "datamodule", None)
        if data is None:
            unknown = ", ".join(name for name, size in self._sizes.items() if size is None)
            raise ValueError(
                f"{unknown} of {type(self).__name__} must be given if the Trainer has no data "
                "module to take them from"
            )
        of_data = self._sizes_of(data)
        sizes = {
            name: of_data[name] if size is None else size for name, size in self._sizes.items()
        }
        self.save_hyperparameters(sizes)
        self.take_sizes(**sizes)

    @abstractmethod
    def _build(self, *args: Any, **sizes: Any) -> None:
        """Create the layers, and everything else that depends on the sizes."""

    @abstractmethod
    def _sizes_of(self, data: Any) -> dict[str, int]:
        """Return the sizes for the data of a data module."""
