"""Which parameters servers have: those that are trainable when training starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch.nn import Parameter
from torch.optim import Optimizer


def served(optimizer: Optimizer) -> list[Parameter]:
    """The trainable parameters of an optimizer, in its order."""
    return [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]


class Served:
    """What servers have of some optimizers, to hold against what these have later."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        """Note what there is now."""
        self._parameters: Collection[Parameter] = {
            one for optimizer in optimizers for one in served(optimizer)
        }
        self._groups = [len(optimizer.param_groups) for optimizer in optimizers]

    def check(self, index: int, optimizer: Optimizer) -> None:
        """Check that servers have all that an optimizer would step.

        Raises:
            RuntimeError: a parameter without a server has a gradient, or a parameter group has come
                to the optimizer.

        """
        unserved = [
            one for one in served(optimizer) if one.grad is not None and one not in self._parameters
        ]
        if not unserved and len(optimizer.param_groups) == self._groups[index]:
            return
        what = (
            f"a parameter of shape {tuple(unserved[0].shape)}"
            if unserved
            else f"parameter group {self._groups[index]} of {type(optimizer).__name__}"
        )
        raise RuntimeError(
            f"{what} was frozen or in no optimizer when training started, so no server has it: "
            "parameters can't be unfrozen under parameter servers. Have them trainable from the "
            "start, in a parameter group whose learning rate is 0 until then; or end this fit, and "
            "begin another one with them."
        )
