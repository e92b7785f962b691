"""Averages the gradients of a module, by one hook of DDP or without it."""

# No postponed evaluation of annotations in this file: DDP checks the annotations of a hook.
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast
from zlib import crc32

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook, GradientSync
from lightning_hier.comm.gradients.gtc_reducer import GTCReducer
from lightning_hier.comm.gradients.reached import ReachedParameters, rehearse
from lightning_hier.comm.gradients.reducers import (
    AllReducer,
    Future,
    GradientBucket,
    HookReducer,
    Reducer,
    finished,
)
from lightning_hier.comm.gradients.warm_up import WarmUp
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import named_ranks, ranks_by_value
from lightning_hier.comm.worker import GradientMemory


@dataclass
class GradientHook:
    """State of :func:`gradient_hook`.

    Attributes:
        reducer: reducer that averages the buckets.
        reached: record of parameters with a gradient.
        rehearsing: whether a pass only forms buckets, so that its gradients are not reduced.

    """

    reducer: Reducer
    reached: ReachedParameters
    rehearsing: bool = False


def gradient_hook(state: GradientHook, bucket: GradBucket) -> Future:
    """Communication hook for ``DistributedDataParallel.register_comm_hook``."""
    buffer = bucket.buffer()
    if state.rehearsing:
        return finished(buffer)
    parameters = cast(list[Parameter], bucket.parameters())
    # DDP does not write back the gradient of a parameter that no rank has used, so it must not be
    # sent.
    absent = state.reached.missing_of(parameters)
    gradients = GradientBucket(
        parameters,
        buffer,
        absent,
        is_first=bucket.index() == 0,
        is_last=bucket.is_last(),
        of_ddp=bucket,
    )
    with profiler_range("hier/gradients/exchange"):
        future = state.reducer.reduce(gradients)
    if gradients.is_last:
        state.reached.end_step()
    return future


class Reduction:
    """Averages gradients over the world in the warm-up, and over the group after it.

    Nothing is wrapped. A DDP module gets one communication hook, whichever ranks it spans. Modules
    that FSDP2 divides average inside their group by themselves, and groups of one rank need no
    average; in the warm-up, these average over the groups in every backward pass.

    Args:
        module: module inside all wrappers.
        communicators: channels of this rank.
        config: gradient synchronisation inside a group.
        memory: residuals and thresholds of this rank.
        grad_scale: returns the current factor of loss scaling.

    Attributes:
        warming: whether gradients are averaged over the world.
        reduced: parameters that were trainable in :meth:`attach`.

    """

    def __init__(
        self,
        module: Module,
        communicators: Communicators,
        config: GradientSync,
        memory: GradientMemory,
        grad_scale: Callable[[], float],
    ) -> None:
        self._module = module
        self._communicators = communicators
        self._config = config
        self._memory = memory
        self._grad_scale = grad_scale
        self.warming = False
        self.reduced: set[Parameter] = set()
        self._in_group: Reducer | None = None
        self._ddp: DistributedDataParallel | None = None
        self._hook: GradientHook | None = None
        self._warm_up: WarmUp | None = None
        self._order_is_due = False

    def attach(self, model: Module, *, warming: bool) -> None:
        """Average the gradients of ``model``, instead of those of an earlier one.

        Args:
            model: the module, perhaps wrapped by DDP.
            warming: whether to average over the world, until :meth:`set_warm_up` ends it.

        """
        # First, because a hook of the user gets the new group only if its state has none.
        self.close()
        channels = self._communicators
        reduced = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.reduced, self._hook = set(reduced), None
        # Also in the warm-up, in which only its metrics are used.
        self._in_group = build_reducer(self._config, channels.group, self._memory, self._grad_scale)
        if isinstance(model, DistributedDataParallel):
            # Without find_unused_parameters, every step reaches all parameters.
            reached = ReachedParameters(reduced, every_step=model.find_unused_parameters)
            self._ddp, self._hook = model, GradientHook(self._in_group, reached)
            model.register_comm_hook(self._hook, gradient_hook)
        self.set_warm_up(warming=warming)

    @property
    def ready_order(self) -> list[Parameter]:
        """Parameters in the order of their gradients in the first step."""
        return [] if self._hook is None else self._hook.reached.first_order

    def set_warm_up(self, *, warming: bool) -> None:
        """Average over the world from now on, or over the group. Does not communicate."""
        self.warming = warming
        self._remove_warm_up()
        channels, in_group = self._communicators, self._in_group
        assert in_group is not None, "a module is attached"
        spanned = channels.world.size if self._ddp is None else self._ddp.process_group.size()
        self._order_is_due = warming and spanned < channels.world.size
        if self._hook is not None:
            self._hook.reducer = AllReducer(channels.world) if warming else in_group
        elif warming and channels.across.size > 1:
            self._warm_up = WarmUp(self._module, channels.across)

    def require_averaged(self) -> None:
        """Raise RuntimeError if an optimizer steps before a warm-up has averaged its gradients."""
        if self._warm_up is None:
            return
        if torch._C._current_graph_task_id() >= 0:
            raise RuntimeError(
                "an optimizer steps within the backward pass, behind which the warm-up averages "
                "the gradients: pass warmup_steps=0, or step behind it"
            )
        if self._warm_up.is_passed_by:
            raise RuntimeError(
                "no backward pass has computed the gradients of this step, so the warm-up has not "
                "averaged them over all ranks: call backward() instead of torch.autograd.grad(), "
                "or pass warmup_steps=0"
            )

    def require_same_order(self) -> None:
        """Behind the first step of a warm-up, check that DDP forms the same buckets in all groups.

        It forms them anew in the order in which the gradients of the first rank of a group were
        ready, and a warm-up sums buckets over the groups. A collective of the world then.

        Raises:
            ValueError: on every rank, if it does not.

        """
        if not (self._order_is_due and self.ready_order):
            return
        self._order_is_due = False
        channels = self._communicators
        numbers = {parameter: number for number, parameter in enumerate(self._module.parameters())}
        own = crc32(str([numbers[parameter] for parameter in self.ready_order]).encode())
        place = "the comparison of the orders of gradients"
        of_ranks = gather_json(own, channels.device, place=place)
        groups = [*ranks_by_value(of_ranks[:: channels.group.size]).values()]
        if len(groups) > 1:
            raise ValueError(
                "a warm-up averages gradients over all groups, whose first ranks must use the "
                "layers of the module in the same order, but "
                f"{' and '.join(named_ranks(same, 'group') for same in groups)} differ: wrap "
                "the module by DistributedDataParallel over all ranks, which has one order, or "
                "pass warmup_steps=0"
            )

    def rehearse(self, order: Sequence[Parameter]) -> None:
        """Make DDP form the buckets of a run whose gradients came in ``order``, on the CPU.

        They decide how sums of gradients are rounded. With ``find_unused_parameters``, DDP keeps
        its initial buckets. A collective of the ranks of DDP.
        """
        model, hook = self._ddp, self._hook
        if model is None or hook is None or not order or set(order) != self.reduced:
            return
        # Resuming is bit for bit exact on the CPU only.
        if model.find_unused_parameters or order[0].device.type != "cpu":
            return
        # DDP calls the hook here, too. The gradients are zeros, and are not exchanged.
        hook.rehearsing = True
        rehearse(model, order)
        hook.rehearsing = False
        hook.reached.first_order = list(order)

    def metrics(self) -> dict[str, float]:
        """Metrics of the group's reducer by name."""
        return {} if self._in_group is None else self._in_group.metrics()

    def close(self) -> None:
        """Remove hooks of parameters, and the process group from the state of the user's hook."""
        if self._in_group is not None:
            self._in_group.close()
        if self._hook is not None:
            self._hook.reached.remove()
        self._ddp = None  # its buckets are as large as the gradients
        self._remove_warm_up()

    def _remove_warm_up(self) -> None:
        if self._warm_up is not None:
            self._warm_up.remove()
            self._warm_up = None


def build_reducer(
    config: GradientSync,
    group: Channel,
    memory: GradientMemory,
    grad_scale: Callable[[], float],
) -> Reducer:
    """Build the reducer that averages gradients over a group, for a :class:`Reduction`."""
    if isinstance(config, GTC) and config.of == "update":
        return Reducer(group)  # UpdateExchange sends what optimizers make of them
    if isinstance(config, GTC):
        return GTCReducer(group, config, memory, grad_scale=grad_scale)
    if isinstance(config, CommHook):
        return HookReducer(group, config)
    return AllReducer(group)
