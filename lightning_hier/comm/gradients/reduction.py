"""Averages the gradients of a rank while a Trainer fits."""

# No postponed evaluation of annotations in this file: DDP checks the annotations of a hook.
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

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
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import GradientMemory

Wrap = Callable[[Channel | None], Module]
"""Wraps the module in DDP over a channel, or unwraps it for None."""


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

    DDP over these ranks has one communication hook. The module is wrapped again when they change.
    If there is nothing to reduce, it is not wrapped.

    Args:
        communicators: channels of this rank.
        memory: residuals and thresholds of this rank.
        config: gradient synchronisation inside a group.
        grad_scale: returns the current factor of fp16 loss scaling.
        wrap: see :data:`Wrap`.

    Attributes:
        warming: whether the module was last wrapped for the warm-up.
        temporary: whether DDP is used only until a group of one rank has returned older residuals.
        reduced: parameters that were trainable when the module was last wrapped.

    """

    def __init__(
        self,
        communicators: Communicators,
        memory: GradientMemory,
        config: GradientSync,
        grad_scale: Callable[[], float],
        wrap: Wrap,
    ) -> None:
        self._group, self._world = communicators.group, communicators.world
        self._device = communicators.device
        self._memory = memory
        self._config = config
        self._is_hook = isinstance(config, CommHook)
        self._grad_scale = grad_scale
        self._wrap = wrap
        self.warming = self.temporary = False
        self._in_group: Reducer | None = None
        self._hook: GradientHook | None = None
        self.reduced: set[Parameter] = set()
        self._over: Channel | None = None

    @property
    def ready_order(self) -> list[Parameter]:
        """Parameters in the order of their gradients in the first step."""
        return [] if self._hook is None else self._hook.reached.first_order

    def wrap(self, *, warming: bool) -> None:
        """Wrap the module over the ranks that average gradients now. A collective of these ranks.

        Args:
            warming: whether to average over the world, as in the warm-up, instead of the group.

        """
        self._over = over = self._ranks_of_ddp(warming=warming)
        self.temporary = over is not None and over.size == 1 and not self._is_hook
        # The old wrapper is not kept, because its buckets are as large as the gradients.
        self._attach(self._wrap(over), warming=warming)

    def _ranks_of_ddp(self, *, warming: bool) -> Channel | None:
        """The ranks over which DDP wraps the module, or None if it is not wrapped.

        In a group of one rank, DDP's reducer would copy every gradient twice at every step without
        need. DDP is still used there for a hook of the user, and to return residuals of a run with
        larger groups.
        """
        ranks = self._world if warming else self._group
        used = self._is_hook or bool(self._memory.tensors)
        return ranks if ranks.size > 1 or used else None

    def _attach(self, model: Module, *, warming: bool) -> None:
        # First, because a hook of the user gets the new group only if its state has none.
        self.close()
        reduced = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.reduced, self.warming = set(reduced), warming
        # Also in the warm-up, in which only its metrics are used.
        self._in_group = build_reducer(self._config, self._group, self._memory, self._grad_scale)
        reducer = AllReducer(self._world) if warming else self._in_group
        self._hook = None
        if isinstance(model, DistributedDataParallel):
            # Without find_unused_parameters, every step reaches all parameters.
            reached = ReachedParameters(reduced, every_step=model.find_unused_parameters)
            self._hook = GradientHook(reducer, reached)
            model.register_comm_hook(self._hook, gradient_hook)

    def suits(self, parameters: Iterable[Parameter], *, warming: bool) -> bool:
        """Whether the module is wrapped for all trainable ``parameters`` and the right ranks."""
        # Channels by identity: two channels of the same ranks have different process groups.
        return (
            self.warming == warming
            and self._over is self._ranks_of_ddp(warming=warming)
            and all(p in self.reduced for p in parameters if p.requires_grad)
        )

    def rehearse(self, model: Module | None, order: list[Parameter]) -> None:
        """Make DDP form the buckets of a run whose gradients came in ``order``, on the CPU.

        With ``find_unused_parameters``, DDP keeps its initial buckets.
        """
        if self._hook is None or not isinstance(model, DistributedDataParallel):
            return
        # Resuming is bit for bit exact on the CPU only.
        if model.find_unused_parameters or self._device.type != "cpu":
            return
        if not order or set(order) != self.reduced:
            return
        # DDP calls the hook here, too. The gradients are zeros, and are not exchanged.
        self._hook.rehearsing = True
        rehearse(model, order)
        self._hook.rehearsing = False
        self._hook.reached.first_order = list(order)

    def metrics(self) -> dict[str, float]:
        """Metrics of the group's reducer by name."""
        return {} if self._in_group is None else self._in_group.metrics()

    def close(self) -> None:
        """Remove hooks of parameters, and the process group from the state of the user's hook."""
        if self._in_group is not None:
            self._in_group.close()
        if self._hook is not None:
            self._hook.reached.remove()


def build_reducer(
    config: GradientSync,
    group: Channel,
    memory: GradientMemory,
    grad_scale: Callable[[], float],
) -> Reducer:
    """Build the reducer that averages gradients over a group.

    Args:
        config: settings of the user.
        group: ranks of the group.
        memory: residuals and thresholds of this rank.
        grad_scale: returns the current factor of loss scaling.

    """
    if isinstance(config, GTC):
        return GTCReducer(group, config, memory, grad_scale=grad_scale)
    if isinstance(config, CommHook):
        return HookReducer(group, config)
    return AllReducer(group)
