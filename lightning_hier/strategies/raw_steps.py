"""Steps of optimizers that a strategy does not get to see are errors: nothing would synchronise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class RawSteps:
    """Refuses steps in training that are taken on an optimizer itself, past the Trainer.

    Every optimizer of the process is watched: the one that the Trainer knows may wrap another, and
    need not be torch's at all.

    Args:
        trained: parameters of the user's module; steps of optimizers that have none of them pass.
        elsewhere: whether it is not training at present: who steps while the global model is shown
            writes into that.

    """

    def __init__(
        self, trained: Callable[[], Collection[Tensor]], elsewhere: Callable[[], bool]
    ) -> None:
        self._trained = trained
        self._elsewhere = elsewhere
        self._counted = False
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Watch the optimizers."""
        self._handle = register_optimizer_step_pre_hook(self._check)

    def remove(self) -> None:
        """Leave them alone."""
        if self._handle is not None:
            self._handle.remove()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Steps within are those of the strategy, be it of an optimizer that another one wraps."""
        self._counted = True
        try:
            yield
        finally:
            self._counted = False

    def _check(self, optimizer: Optimizer, *_: Any) -> None:
        if self._counted or self._elsewhere():
            return
        trained = self._trained()
        if any(own in trained for group in optimizer.param_groups for own in group["params"]):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called on the optimizer itself in "
                "training: nobody would count this step, and synchronisations and warm-ups go by "
                "their number. Call step() of what self.optimizers() gives, without "
                "use_pl_optimizer=False, also where that wraps another optimizer."
            )
