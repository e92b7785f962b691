"""Errors for misuse that would otherwise lose updates without a message.

``RawSteps`` is for all strategies, ``WorkerWrites`` for virtual workers, and ``ServedParameters``
for parameter servers. What else differs from DDP is documented in ``docs/migration/ddp.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.parameter_server.user_optimizer import trainable


class RawSteps:
    """Raises an error for optimizer steps that bypass the Trainer: no strategy counts them.

    The hook is registered for all optimizers of the process. An optimizer that the Trainer uses may
    wrap another one, and need not be a torch optimizer.

    Args:
        trained: parameters of the module. Steps of optimizers without any of them are ignored.
        elsewhere: whether steps are allowed now, as in evaluation.

    """

    def __init__(
        self, trained: Callable[[], Collection[Tensor]], elsewhere: Callable[[], bool]
    ) -> None:
        self._trained = trained
        self._elsewhere = elsewhere
        self._counted = False
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Register the hook."""
        self._handle = register_optimizer_step_pre_hook(self._check)

    def remove(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Allow steps within the context: the strategy counts them."""
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


class WorkerWrites:
    """Raises an error for writes that would reach only one virtual worker, or all of them.

    Between two steps the module holds the model of the first virtual worker, so a write in
    ``on_train_batch_end`` would not reach the others. Frozen parameters are shared, so a write in
    the step of one worker would reach all of them.

    Args:
        module: the module.
        models: local models of this rank.

    """

    def __init__(self, module: Module, models: LocalModels) -> None:
        self._module = module
        self._models = models
        self._before: Tensor | None = None
        self._after: Tensor | None = None

    def begin_step(self) -> None:
        """Note the parameters, if some are shared, before the workers make a step."""
        self._before = self._norms() if any(map(self._is_shared, self._parameters)) else None

    def end_step(self) -> None:
        """Compare the shared parameters after all workers have made a step.

        Raises:
            ValueError: a shared parameter was written.

        """
        several = self._models.present > 1
        self._after = self._norms() if several or self._before is not None else None
        if written := [own for own in self._written(self._before) if self._is_shared(own)]:
            raise ValueError(
                f"frozen parameters were written to in a step ({self._named(written)}), and "
                "with virtual_workers above 1 all workers of a rank have them in common: make them "
                "buffers (register_buffer), or start a rank for each worker"
            )

    def end_batch(self) -> None:
        """Compare all parameters after the hooks of a batch.

        Raises:
            ValueError: a parameter was written, and each worker has a model of its own.

        """
        if self._models.present == 1 or self._after is None:
            return
        before, self._after = self._after, self._norms()
        if written := self._written(before):
            raise ValueError(
                f"parameters were written to in on_train_batch_end ({self._named(written)}), which "
                "with virtual_workers above 1 reaches only one worker of each rank: do it in "
                "training_step, or start a rank for each worker"
            )

    @property
    def _parameters(self) -> list[Parameter]:
        return [own for own in self._module.parameters() if own.is_floating_point()]

    def _is_shared(self, own: Parameter) -> bool:
        return not own.requires_grad and own not in self._models.parameters

    def _norms(self) -> Tensor:
        # A write through `.data` does not change the version counter of a tensor. Norms are
        # computed twice a step and are faster than fingerprints.
        norms = torch._foreach_norm([own.detach() for own in self._parameters])
        return torch.stack([norm.double() for norm in norms])

    def _written(self, before: Tensor | None) -> list[Parameter]:
        if before is None or self._after is None:
            return []
        # As whole numbers: NaN does not equal itself.
        differs = (before.view(torch.int64) != self._after.view(torch.int64)).tolist()
        return [own for own, found in zip(self._parameters, differs, strict=True) if found]

    def _named(self, written: Collection[Parameter]) -> str:
        return _names(self._module, written)


class ServedParameters:
    """Raises an error for writes outside of steps into parameters that servers hold.

    Servers do not receive such a write, and their next reply overwrites it.

    Args:
        module: the module.
        optimizers: its optimizers. Servers hold their trainable parameters.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer]) -> None:
        self._module = module
        self._parameters = [own for optimizer in optimizers for own in trainable(optimizer)]
        self._noted: list[int] | None = None

    def note(self) -> None:
        """Note the present values, which are those of the servers."""
        self._noted = fingerprints(self._parameters)

    def forget(self) -> None:
        """Allow writes until the next :meth:`note`."""
        self._noted = None

    def check(self) -> None:
        """Compare the present values with the noted ones, if any, and forget these.

        Raises:
            RuntimeError: a parameter was written; the message names it.

        """
        noted, self._noted = self._noted, None
        if noted is None:
            return
        pairs = zip(self._parameters, noted, fingerprints(self._parameters), strict=True)
        written = [own for own, before, after in pairs if before != after]
        if written:
            raise RuntimeError(
                "parameters were written to outside of training steps "
                f"({_names(self._module, written)}): they are on parameter servers, which would "
                "overwrite it at the next step. Write them before training, in setup or "
                "configure_model."
            )


def _names(module: Module, parameters: Collection[Tensor]) -> str:
    chosen = set(parameters)
    return ", ".join(name for name, own in module.named_parameters() if own in chosen)
