"""Steps of optimizers that a strategy does not get to see are errors: nothing would synchronise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class RawSteps:
    """Refuses steps in training that are taken on the optimizer itself, past the Trainer.

    Args:
        optimizers: of the user's module.
        elsewhere: whether it is not training at present: who steps while the global model is shown
            writes into that.

    """

    def __init__(self, optimizers: Sequence[Optimizer], elsewhere: Callable[[], bool]) -> None:
        self._optimizers = optimizers
        self._elsewhere = elsewhere
        self._counted = False
        self._handles: list[RemovableHandle] = []

    def install(self) -> None:
        """Watch the optimizers."""
        self._handles = [own.register_step_pre_hook(self._check) for own in self._optimizers]

    def remove(self) -> None:
        """Leave them alone."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Steps within are those of the strategy."""
        self._counted = True
        try:
            yield
        finally:
            self._counted = False

    def _check(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._counted and not self._elsewhere():
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called on the optimizer itself in "
                "training: nobody would count this step, and synchronisations and warm-ups go by "
                "their number. "
                "Step what self.optimizers() gives, without use_pl_optimizer=False."
            )
