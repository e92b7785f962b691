"""Parameters on a server, and their update by a copy of the user's optimizer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.parameter_server.updater import Hyperparameters, ParameterStates, Updater

_log = logging.getLogger(__name__)


class ServedValues:
    """Values of parameters on the host, and their Updater. Thread-safe.

    Args:
        name: name of the values, for log messages.
        tensors: values, updated in place.
        updater: updater over these tensors.
        dtype: dtype of flat copies; it must represent every tensor exactly.

    """

    def __init__(
        self, name: str, tensors: Sequence[Tensor], updater: Updater, dtype: torch.dtype
    ) -> None:
        self._name = name
        self._tensors = list(tensors)
        self._sizes = [tensor.numel() for tensor in tensors]
        self._updater = updater
        self._dtype = dtype
        self._flat: Tensor | None = None
        # A lock, because two-stage ASGD copies the state in another thread than the updating one.
        self._lock = threading.RLock()

    def flat(self) -> Tensor:
        """A copy of the current values, 1-D, kept until the next update. It is never changed."""
        with self._lock:
            if self._flat is None:
                pieces = [tensor.reshape(-1).to(self._dtype) for tensor in self._tensors]
                # torch.cat refuses an empty list, as of an optimizer without trainable parameters.
                self._flat = torch.cat([torch.empty(0, dtype=self._dtype), *pieces])
            return self._flat

    def update(
        self,
        mean: Tensor,
        *,
        absent: Collection[int],
        rate_factor: float,
        hyperparameters: Hyperparameters | None,
    ) -> bool:
        """``w <- w - rate_factor * lr * Updater(mean)``.

        An update to NaN or inf is undone: the values are restored, and the optimizer state, which
        may contain them as well, is reset.

        Args:
            mean: mean gradient, 1-D.
            absent: positions of parameters without a gradient, which are not updated.
            rate_factor: factor of every learning rate.
            hyperparameters: hyperparameters of the user's optimizer; None: those of the last
                update.

        Returns:
            False if the gradient or the new values are not finite.

        """
        if not all_finite(mean):
            return False
        with self._lock:
            # The backup costs no memory: it is the copy that workers have received.
            before, pieces = self.flat(), mean.split(self._sizes)
            gradients = [None if at in absent else piece for at, piece in enumerate(pieces)]
            self._updater.step(gradients, rate_factor=rate_factor, hyperparameters=hyperparameters)
            self._flat = None
            # Freed before the new flat copy is created, to save memory.
            del mean, pieces, gradients
            if all_finite(self.flat()):
                return True
            for tensor, piece in zip(self._tensors, before.split(self._sizes), strict=True):
                tensor.copy_(piece.view(tensor.shape))
            self._flat = before
            self._updater.reset()
        _log.warning(
            "an update of %s is not finite: the values are not changed, and the state of their "
            "optimizer is reset",
            self._name,
        )
        return False

    def snapshot(self) -> tuple[Tensor, ParameterStates]:
        """Consistent copies of the flat values and of the optimizer state by parameter index."""
        with self._lock:
            return self.flat(), self._updater.state()

    def load(self, states: ParameterStates) -> None:
        """Load the optimizer state of these parameters."""
        with self._lock:
            self._updater.load(states)
