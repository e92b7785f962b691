"""The DDP module of a Trainer, which is made anew when the ranks that average gradients change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.broadcast import check_sendable
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import CommHook, GradientSync
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.worker import GradientMemory

Wrap = Callable[[Channel | None], Module]
"""Wraps the module in DDP over a channel, or unwraps it for None."""


class Wrapping:
    """Wraps the module over the world in the warm-up, and over the group after it.

    In a group of one rank, DDP's reducer would copy every gradient twice at every step without
    need. DDP is still used there for a hook of the user, and to return residuals of a run with
    larger groups.

    Args:
        communicators: channels of this rank.
        memory: residuals and thresholds of this rank.
        config: gradient synchronisation inside a group.
        reduction: averages the gradients of the module.
        wrap: see :data:`Wrap`.

    Attributes:
        temporary: whether DDP is used only until a group of one rank has returned older residuals.

    """

    def __init__(
        self,
        communicators: Communicators,
        memory: GradientMemory,
        config: GradientSync,
        reduction: Reduction,
        wrap: Wrap,
    ) -> None:
        self._communicators, self._memory = communicators, memory
        self._is_hook = isinstance(config, CommHook)
        self._reduction, self._wrap = reduction, wrap
        self._over: Channel | None = None
        self.temporary = False

    def wrap(self, *, warming: bool) -> None:
        """Wrap the module over the ranks that average gradients now. A collective of them."""
        self._over = over = self._ranks(warming=warming)
        self.temporary = over is not None and over.size == 1 and not self._is_hook
        self._reduction.close()  # first, because it refers to the old wrapper
        # DDP makes the ranks' parameters equal. What hooks have written since the last step stays.
        written = self._memory.written({p: p.detach() for p in self._memory.shared})
        written = {parameter: value.clone() for parameter, value in written.items()}
        with self._memory.group_model():
            self._reduction.attach(self._wrap(over), warming=warming)
        for parameter, value in written.items():
            parameter.detach().copy_(value)

    def suits(self, parameters: Iterable[Parameter], *, warming: bool) -> bool:
        """Whether the module is wrapped for all trainable ``parameters`` and the right ranks."""
        # Channels by identity: two channels of the same ranks have different process groups.
        return (
            self._reduction.warming == warming
            and self._over is self._ranks(warming=warming)
            and all(p in self._reduction.reduced for p in parameters if p.requires_grad)
        )

    def _ranks(self, *, warming: bool) -> Channel | None:
        """The ranks over which DDP wraps the module, or None if it is not wrapped."""
        ranks = self._communicators.world if warming else self._communicators.group
        used = self._is_hook or bool(self._memory.tensors)
        return ranks if ranks.size > 1 or used else None


def wrap_by_ddp(
    strategy: DDPStrategy, arguments: Mapping[str, Any], ranks: Channel | None
) -> Module:
    """Set the model of the strategy: its module, wrapped by DDP over ``ranks`` if given.

    A collective of these ranks.

    Args:
        strategy: strategy of this rank.
        arguments: further arguments of DDP.
        ranks: see above.

    """
    module = strategy.lightning_module
    assert module is not None
    strategy.model = module  # the old wrapper is not kept
    if ranks is None:
        return module
    check_sendable(module, dist.get_backend())
    devices = strategy.determine_ddp_device_ids()
    wrapped = DistributedDataParallel(
        module, device_ids=devices, process_group=ranks.group, **arguments
    )
    strategy.model = wrapped
    return wrapped
