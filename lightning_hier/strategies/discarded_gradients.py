"""A warning where gradients are thrown away that threshold compression remembers."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hier.strategies.reduction import Reduction


class DiscardedGradients(Callback):
    """Warns once of gradients that no optimizer has used before they were emptied.

    That is so where a backward pass goes through the parameters of another optimizer, as the loss
    of a generator does through a discriminator. What was not sent of such a gradient stays in the
    residuals and trains the model later.

    Args:
        reduction: tells what was compressed.

    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._unused: set[Tensor] = set()
        self._warned = False

    @override
    def on_before_backward(self, *_: Any) -> None:
        """Look whether gradients that wait for their optimizer are gone."""
        if not self._warned and any(own.grad is None for own in self._unused):
            self._warned = True
            rank_zero_warn(
                "Gradients were thrown away (zero_grad) that a backward pass had made for an "
                "optimizer that did not step. GTC has added them to its residuals, so they train "
                "the model later. Surround the forward and backward passes of each optimizer with "
                "self.toggle_optimizer(optimizer) and self.untoggle_optimizer(optimizer)."
            )

    @override
    def on_after_backward(self, trainer: Any, *_: Any) -> None:
        """Note what a pass has made and compressed."""
        held = {own for optimizer in trainer.optimizers for own in _parameters(optimizer)}
        self._unused |= held.intersection(self._reduction.take_compressed())

    @override
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """The gradients of this optimizer are used, or left out on purpose by loss scaling."""
        self._unused.difference_update(_parameters(optimizer))


def _parameters(optimizer: Any) -> list[Tensor]:
    return [own for group in optimizer.param_groups for own in group["params"]]
