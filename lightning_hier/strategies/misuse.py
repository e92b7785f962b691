"""Errors for misuse that would otherwise lose updates without a message.

``RawSteps`` and ``require_attached`` are for all strategies, and ``ServedParameters`` for parameter
servers.
``docs/migration/ddp.md`` documents other differences to DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.parameter_server.updater import trainable


class RawSteps:
    """Raises an error for optimizer steps that bypass the Trainer, because they are not counted.

    The hook is registered for all optimizers of the process. An optimizer that the Trainer uses may
    wrap another one, and need not be a torch optimizer.

    Args:
        trained: parameters of the module. Steps of optimizers without any of them are ignored.
        elsewhere: whether steps are allowed now, as in evaluation.

    Attributes:
        remove: function that removes the hook.

    """

    def __init__(
        self, trained: Callable[[], Collection[Tensor]], elsewhere: Callable[[], bool]
    ) -> None:
        self._trained = trained
        self._elsewhere = elsewhere
        self._counted = False
        self.remove = register_optimizer_step_pre_hook(self._check).remove

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Allow steps within the context, which the strategy counts."""
        self._counted = True
        try:
            yield
        finally:
            self._counted = False

    def _check(self, optimizer: Optimizer, *_: Any) -> None:
        # First what is cheap, because this runs at every step of every optimizer of the process.
        if self._counted or self._elsewhere():
            return
        trained = self._trained()
        if any(parameter in trained for parameter in optimizer_parameters(optimizer)):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called on the optimizer itself during "
                "training. This step would not be counted, but synchronisations and the warm-up "
                "depend on the number of steps. Call step() of the optimizers that "
                "self.optimizers() returns, without use_pl_optimizer=False."
            )


def require_attached(optimizer: Any, attached: Sequence[Any], index: int) -> None:
    """Check that the optimizer that steps is that with which training began.

    Raises:
        RuntimeError: it is another one.

    """
    own = attached[index] if index < len(attached) else None
    if optimizer is own:
        return
    # A callback may have wrapped it since. A wrapper has the parameter groups of what is inside.
    if own is None or own.param_groups[0] is not optimizer.param_groups[0]:
        raise RuntimeError(
            f"{type(optimizer).__name__} is not the optimizer {index} with which training began, "
            "so its state would not be synchronised: optimizers can't be replaced in a fit. Change "
            "their param_groups, or end this fit and begin another one."
        )


class ServedParameters:
    """Raises an error for updates of parameters that would not reach the servers.

    Servers hold the parameters that are trainable when training starts. They do not receive writes
    to them outside of steps, and their next reply overwrites these writes.

    Args:
        module: the module.
        optimizers: optimizers of the module.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        # Servers use the learning rate and other settings of each group by its index.
        self._groups = [len(optimizer.param_groups) for optimizer in optimizers]
        self._served = {p for optimizer in optimizers for p in trainable(optimizer)}
        self._module = module
        self._noted: dict[Parameter, int] = {}

    def check_step(self, index: int) -> None:
        """Check an optimizer before its step.

        Raises:
            RuntimeError: a parameter that no server holds has a gradient, or a parameter group has
                been added to the optimizer.

        """
        what, optimizer = None, self._optimizers[index]
        if len(optimizer.param_groups) != self._groups[index]:
            what = f"parameter group {self._groups[index]} of {type(optimizer).__name__}"
        for p in optimizer_parameters(optimizer):
            if p.grad is not None and p.requires_grad and p not in self._served:
                what = f"a parameter of shape {tuple(p.shape)}"
        if what is not None:
            raise RuntimeError(
                f"{what} was frozen or in no optimizer when training started, so no server has it: "
                "parameters can't be unfrozen under parameter servers. Have them trainable from "
                "the start, in a parameter group whose learning rate is 0 until then; or end this "
                "fit, and begin another one with them."
            )

    def note(self) -> None:
        """Record the current values, which are those of the servers."""
        served = list(self._served)
        self._noted = dict(zip(served, fingerprints(served), strict=True))

    def forget(self) -> None:
        """Allow writes until the next :meth:`note`."""
        self._noted = {}

    def check(self) -> None:
        """Compare the current values with the recorded ones, if any, and discard the record.

        Raises:
            RuntimeError: a parameter was written. The error names it.

        """
        now = fingerprints(list(self._noted))
        written = {p for (p, old), new in zip(self._noted.items(), now, strict=True) if old != new}
        names = ", ".join(name for name, p in self._module.named_parameters() if p in written)
        # Once: the next step changes the parameters, which is no misuse.
        self.forget()
        if names:
            raise RuntimeError(
                f"parameters were written to outside of training steps ({names}), but parameter "
                "servers hold them and would overwrite the values at the next step. Write to "
                "parameters before training, in setup or configure_model."
            )
