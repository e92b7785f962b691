"""Takes the gradients of a step before the user's optimizer uses them, without wrapping it.

With parameter servers, the update is made elsewhere. The optimizer is still stepped, so that its
hooks run, schedulers see a step and gradient scaling works, but it finds no gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from lightning_hier.comm.blocks.trained import optimizer_parameters


class StepGradients:
    """A hook before the step of one optimizer.

    Args:
        optimizer: optimizer of the user.
        check: function that is called before ``take``, and may raise an error.
        take: function that is called when the gradients are complete (unscaled and clipped) and
            still in ``.grad``.

    Attributes:
        taken: whether a step was made since this was last set to False. Gradient scaling skips
            steps whose gradients are not finite.

    """

    def __init__(
        self, optimizer: Optimizer, *, check: Callable[[], None], take: Callable[[], None]
    ) -> None:
        self._optimizer = optimizer
        self._check = check
        self._take = take
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        self.taken = False

    def remove(self) -> None:
        """Remove the hook, so that the optimizer updates the parameters again."""
        self._handle.remove()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # torch passes the optimizer as the first argument, and uses what this hook returns.
        stepped, *rest = args
        closure = rest.pop(0) if rest else kwargs.pop("closure", None)
        result = None
        # The optimizer would call the closure after this hook, and use its gradients.
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        parameters = optimizer_parameters(self._optimizer)
        if any(parameter.grad is not None for parameter in parameters):
            if self._unscale():
                self._check()
                self._take()
                self.taken = True
            for parameter in parameters:
                parameter.grad = None
        # A closure that only returns the result, so that nothing is computed a second time.
        return (stepped, None if closure is None else lambda: result, *rest), kwargs

    def _unscale(self) -> bool:
        """Unscale the gradients for fused optimizers. Returns whether the gradients are finite.

        Gradient scaling leaves unscaling and the check for NaN and inf to fused optimizers.
        """
        if not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            return True
        found_inf = getattr(self._optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return False
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            for parameter in optimizer_parameters(self._optimizer):
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        return True
