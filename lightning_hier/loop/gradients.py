"""Averages the gradients of a module that the user has wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.comm.gradients.reached import ReachedParameters, rehearse
from lightning_hier.comm.gradients.reducers import AllReducer
from lightning_hier.comm.gradients.reduction import GradientHook, build_reducer, gradient_hook
from lightning_hier.comm.gradients.sharded_gradients import ShardedGradients
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.comm.worker import GradientMemory


class AttachedGradients:
    """Averages gradients over the world in the warm-up, and over the group after it.

    Nothing is wrapped. A DDP module gets one communication hook, whichever ranks it spans. Modules
    that FSDP2 divides average inside their group by themselves, and groups of one rank need no
    average; in the warm-up, these average over the groups in every backward pass.

    Args:
        model: the user's module, perhaps wrapped.
        module: the module inside all wrappers.
        communicators: channels of this rank.
        config: gradient synchronisation inside a group.
        memory: residuals and thresholds of this rank.
        grad_scale: returns the current factor of loss scaling.
        warming: whether there is a warm-up.

    """

    def __init__(
        self,
        model: Module,
        module: Module,
        *,
        communicators: Communicators,
        config: GradientSync,
        memory: GradientMemory,
        grad_scale: Callable[[], float],
        warming: bool,
    ) -> None:
        self._model = model
        self._reducer = build_reducer(config, communicators.group, memory, grad_scale)
        self._hook: GradientHook | None = None
        self._warm_up: _WarmUp | None = None
        if isinstance(model, DistributedDataParallel):
            trained = [p for p in model.parameters() if p.requires_grad]
            # Without find_unused_parameters, every step reaches all parameters.
            reached = ReachedParameters(trained, every_step=model.find_unused_parameters)
            first = AllReducer(communicators.world) if warming else self._reducer
            self._hook = GradientHook(first, reached)
            model.register_comm_hook(self._hook, gradient_hook)
        elif warming and communicators.across.size > 1:
            self._warm_up = _WarmUp(module, communicators.across)

    @property
    def ready_order(self) -> list[Parameter]:
        """Parameters in the order of their gradients in the first step."""
        return [] if self._hook is None else self._hook.reached.first_order

    def end_warm_up(self) -> None:
        """Average over the group from now on. Does not communicate."""
        if self._hook is not None:
            self._hook.reducer = self._reducer
        if self._warm_up is not None:
            self._warm_up.remove()
            self._warm_up = None

    def rehearse(self, order: Sequence[Parameter]) -> None:
        """Make DDP form the buckets of a run whose gradients came in ``order``, on the CPU.

        They decide how sums of gradients are rounded. A collective of the ranks of DDP.
        """
        model, hook = self._model, self._hook
        if hook is None or not isinstance(model, DistributedDataParallel) or not order:
            return
        # Resuming is bit for bit exact on the CPU only.
        if model.find_unused_parameters or order[0].device.type != "cpu":
            return
        hook.rehearsing = True
        rehearse(model, order)
        hook.rehearsing = False
        hook.reached.first_order = list(order)

    def metrics(self) -> dict[str, float]:
        """Metrics of the group's reducer by name."""
        return self._reducer.metrics()

    def close(self) -> None:
        """Remove hooks of parameters, and the process group from the state of the user's hook."""
        self._reducer.close()
        if self._hook is not None:
            self._hook.reached.remove()
        if self._warm_up is not None:
            self._warm_up.remove()


class _WarmUp:
    """Averages the gradients of a module without DDP over the groups, in every backward pass.

    Args:
        module: module of this rank.
        across: ranks at this position in all groups.

    """

    def __init__(self, module: Module, across: Channel) -> None:
        self._gradients = ShardedGradients(across, module)
        self._across = across
        self._queued = False
        self._handles: list[Any] = []
        self._divided = [child for child in module.modules() if isinstance(child, FSDPModule)]
        for child in self._divided:
            child.set_all_reduce_hook(self._average_part)
        if not self._divided:
            if is_sharded(module):
                raise ValueError(
                    "a warm-up of modules with tensor parallelism needs fully_shard as well: apply "
                    "it with mesh=groups.mesh['group'], or pass warmup_steps=0"
                )
            self._parameters = [p for p in module.parameters() if p.requires_grad]
            self._handles = [
                p.register_post_accumulate_grad_hook(self._note) for p in self._parameters
            ]

    def _average_part(self, gradients: Tensor) -> None:
        """Average what FSDP2 has reduced inside the group, in place."""
        self._across.all_reduce_(gradients.div_(self._across.size), "gradients").wait()

    def _note(self, parameter: Tensor) -> None:
        # Once, when the whole backward pass is complete: ranks may use different parameters.
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        self._queued = False
        self._gradients.average_(self._parameters)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        for child in self._divided:
            child.set_all_reduce_hook(None)  # type: ignore[arg-type]
