"""Keeps validation in the middle of training from changing the random numbers of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightning_hier.comm.worker_random import random_state, set_random_state
from lightning_hier.strategies.trainer_changes import TrainerChanges

# The second one is called when a run is resumed, and makes an iterator that it does not use.
_DRAWING = (
    "fit_loop.epoch_loop.val_loop.run",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end",
)


class IsolatedValidation:
    """Runs a Trainer's validation loop and then puts the random state back.

    Lightning makes a new iterator of the validation data each time, which draws a seed from the
    global generator; so does whatever the module draws itself. Dropout masks and shuffled data of
    the training after it would depend on how often it validates.

    Attributes:
        outside: the random state of training while it validates, else None.

    """

    def __init__(self, changes: TrainerChanges, device: torch.device) -> None:
        """Isolate the validation within ``fit`` of a Trainer that trains on ``device``."""
        self._changes = changes
        self._device = device
        self.outside: dict[str, Any] | None = None

    def install(self) -> None:
        """Wrap the loop's methods that draw."""
        for name in _DRAWING:
            self._changes.replace(name, self._isolated)

    def _isolated(self, method: Callable[[], Any]) -> Callable[[], Any]:
        def isolated() -> Any:
            self.outside = random_state(self._device)
            try:
                return method()
            finally:
                set_random_state(self.outside, self._device)
                self.outside = None

        return isolated
