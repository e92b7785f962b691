"""Gradients of a module that FSDP2 or tensor parallelism divides among the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn import Module, Parameter

from lightning_hier.comm.broadcast import average_tensors_
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.sharded_tensors import local_tensor


class ShardedGradients:
    """Averages gradients over the groups in the warm-up. Inside a group, FSDP2 has averaged them.

    It has the attributes and methods of :class:`~lightning_hier.comm.gradients.reduction.Reduction`
    that a session needs. There is nothing to wrap.

    Args:
        across: ranks at this position in all groups.
        module: module that is divided.

    """

    temporary = False
    ready_order: Sequence[Parameter] = ()

    def __init__(self, across: Channel, module: Module) -> None:
        self._across = across
        self.reduced = set(module.parameters())

    def wrap(self, *, warming: bool) -> None:
        """Do nothing."""

    def suits(self, parameters: Iterable[Parameter], *, warming: bool) -> bool:
        """Return True."""
        return True

    def rehearse(self, model: Module | None, order: list[Parameter]) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """Do nothing."""

    @torch.no_grad()
    def average_(self, parameters: Iterable[Parameter]) -> None:
        """Average the gradients of ``parameters`` over the groups, in place.

        A parameter without a gradient in some groups counts there as zero; without one in all
        groups, it keeps none. A collective of the ranks at this position in all groups.
        """
        if self._across.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:  # all parameters of an optimizer are frozen, on all ranks alike
            return
        # Counted first, because all ranks must average the same gradients in the same order.
        missing = torch.tensor(
            [parameter.grad is None for parameter in trained],
            dtype=torch.int32,
            device=local_tensor(trained[0]).device,
        )
        self._across.all_reduce_(missing, "gradients").wait()
        used = [
            parameter
            for parameter, groups in zip(trained, missing.tolist(), strict=True)
            if groups < self._across.size
        ]
        for parameter in used:
            if parameter.grad is None:  # some other group has a gradient
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in used if parameter.grad is not None]
        average_tensors_(gradients, self._across, "gradients")
