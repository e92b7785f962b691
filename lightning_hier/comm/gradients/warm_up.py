"""The warm-up of modules that DDP does not wrap: FSDP2, tensor parallelism, groups of one rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module, Parameter

from lightning_hier.comm.broadcast import average_tensors_
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.sharded_tensors import local_tensor


class WarmUp:
    """Averages the gradients of a module over the groups, in every backward pass.

    Inside a group, FSDP2 and tensor parallelism have averaged them.

    Args:
        module: module of this rank.
        across: ranks at this position in all groups.

    """

    def __init__(self, module: Module, across: Channel) -> None:
        self._across = across
        self._queued = -1
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in self._parameters]
        # The hooks of a parameter that FSDP2 divides do not run.
        self._divided = [child for child in module.modules() if isinstance(child, FSDPModule)]
        for child in self._divided:
            child.set_all_reduce_hook(self._note)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        for child in self._divided:
            child.set_all_reduce_hook(None)  # type: ignore[arg-type]

    @property
    def is_passed_by(self) -> bool:
        """Whether there are gradients although no backward pass has run since the start."""
        return self._queued < 0 and any(p.grad is not None for p in self._parameters)

    def _note(self, _: Tensor) -> None:
        # Once, when the whole backward pass is complete: ranks may use different parameters.
        # Each has a number: one that has failed runs no callback.
        if self._queued != (backward := torch._C._current_graph_task_id()):
            self._queued = backward
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        average_gradients_(self._parameters, self._across)


@torch.no_grad()
def average_gradients_(parameters: Iterable[Parameter], across: Channel) -> None:
    """Average the gradients of ``parameters`` over the groups, in place.

    A parameter without a gradient in some groups counts there as zero; without one in all groups,
    it keeps none. A collective of the ranks at this position in all groups.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:  # all parameters are frozen, on all ranks alike
        return
    # Counted first, because all ranks must average the same gradients in the same order.
    missing = torch.tensor(
        [parameter.grad is None for parameter in trained],
        dtype=torch.int32,
        device=local_tensor(trained[0]).device,
    )
    across.all_reduce_(missing, "gradients").wait()
    used = [
        parameter
        for parameter, groups in zip(trained, missing.tolist(), strict=True)
        if groups < across.size
    ]
    for parameter in used:
        if parameter.grad is None:  # some other group has a gradient
            parameter.grad = torch.zeros_like(parameter)
    average_tensors_([p.grad for p in used if p.grad is not None], across, "gradients")
