"""Errors for misuse that would otherwise lose updates without a message.

``RawSteps`` is for all strategies, ``WorkerWrites`` for virtual workers, and ``ServedParameters``
for parameter servers. What else differs from DDP is documented in ``docs/migration/ddp.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

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

    Attributes:
        remove: removes the hook.

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


def _norms(tensors: Sequence[Tensor]) -> list[int]:
    """Norms, which take less time than fingerprints, for checks at every step.

    As whole numbers: NaN does not equal itself.
    """
    if not tensors:
        return []
    norms = [norm.double() for norm in torch._foreach_norm([own.detach() for own in tensors])]
    return torch.stack(norms).view(torch.int64).tolist()


Digests = Callable[[Sequence[Tensor]], list[int]]


class Watched:
    """Notes the values of parameters, and names those that have been written since.

    Args:
        module: of the parameters.
        digests: returns a number for each of some tensors that changes with their values.

    """

    def __init__(self, module: Module, digests: Digests = fingerprints) -> None:
        self._module = module
        self._digests = digests
        self._noted: dict[Parameter, int] = {}

    def note(self, parameters: Iterable[Parameter] = ()) -> None:
        """Note the present values of ``parameters``, in place of all that were noted before."""
        own = list(parameters)
        self._noted = dict(zip(own, self._digests(own), strict=True))

    def written(self) -> str:
        """Return the names of the parameters whose bits have changed; empty if there are none."""
        now = self._digests(list(self._noted))
        found = {p for (p, old), new in zip(self._noted.items(), now, strict=True) if old != new}
        return ", ".join(name for name, p in self._module.named_parameters() if p in found)


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
        self._watched = Watched(module, _norms)

    def begin_step(self) -> None:
        """Note the frozen parameters before the workers make a step."""
        own = self._models.parameters
        self._watched.note(p for p in self._parameters() if not p.requires_grad and p not in own)

    def end_step(self) -> None:
        """Note all parameters after all workers have made a step.

        Raises:
            ValueError: a frozen parameter was written.

        """
        if names := self._watched.written():
            raise ValueError(
                f"frozen parameters were written to in a step ({names}), and with virtual_workers "
                "above 1 all workers of a rank have them in common: make them buffers "
                "(register_buffer), or start a rank for each worker"
            )
        self._watched.note(self._parameters() if self._models.present > 1 else ())

    def end_batch(self) -> None:
        """Compare all parameters after the hooks of a batch.

        Raises:
            ValueError: a parameter was written, and each worker has a model of its own.

        """
        if names := self._watched.written():
            raise ValueError(
                f"parameters were written to in on_train_batch_end ({names}), which with "
                "virtual_workers above 1 reaches only one worker of each rank: do it in "
                "training_step, or start a rank for each worker"
            )

    def _parameters(self) -> Iterator[Parameter]:
        return (own for own in self._module.parameters() if own.is_floating_point())


class ServedParameters:
    """Raises an error for writes outside of steps into parameters that servers hold.

    Servers do not receive such a write, and their next reply overwrites it.

    Args:
        module: the module.
        optimizers: its optimizers. Servers hold their trainable parameters.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer]) -> None:
        self._parameters = [own for optimizer in optimizers for own in trainable(optimizer)]
        self._watched = Watched(module)

    def note(self) -> None:
        """Note the present values, which are those of the servers."""
        self._watched.note(self._parameters)

    def forget(self) -> None:
        """Allow writes until the next :meth:`note`."""
        self._watched.note()

    def check(self) -> None:
        """Compare the present values with the noted ones, if any, and forget these.

        Raises:
            RuntimeError: a parameter was written; the message names it.

        """
        names = self._watched.written()
        self.forget()
        if names:
            raise RuntimeError(
                f"parameters were written to outside of training steps ({names}): they are on "
                "parameter servers, which would overwrite it at the next step. Write them before "
                "training, in setup or configure_model."
            )
