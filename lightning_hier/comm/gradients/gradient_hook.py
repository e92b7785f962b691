"""The communication hook of DDP, and the reducers that it calls."""

# DDP reads the annotations of a hook as objects: no postponed evaluation in this file.
import time
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.gradient_sync import CommHook
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.ready_order import ReadyOrder
from lightning_hier.comm.profiling import profiler_range

Future = torch.futures.Future[Tensor]


class Reducer(Protocol):
    """Turns the gradients of one bucket into their mean over the workers of some ranks.

    Attributes:
        channel: these ranks.

    """

    channel: Channel

    def reduce(self, bucket: GradientBucket) -> Future:
        """Start reducing ``bucket``, in place; the future holds its first buffer."""

    def metrics(self) -> dict[str, float]:
        """Values to log, by name."""


class GradientHook:
    """State of :func:`gradient_hook`.

    Attributes:
        rehearsing: whether a pass only forms buckets, so that its gradients stay as they are.
        ready_order: order of the parameters in the first step.

    """

    def __init__(
        self,
        reducer: Reducer,
        ready_order: ReadyOrder,
        reached: ReachedParameters | None = None,
    ) -> None:
        """Reduce with ``reducer``; clear ``reached`` at each step."""
        self.rehearsing = False
        self.ready_order = ready_order
        self._reducer = reducer
        self._reached = reached

    @property
    def channel(self) -> Channel:
        """The ranks over which gradients are averaged."""
        return self._reducer.channel

    def reduce_of_ddp(self, bucket: GradBucket) -> Future:
        """Reduce one bucket of DDP."""
        if self.rehearsing:
            return finished(bucket.buffer())
        return self.reduce(GradientBucket.from_ddp(bucket, self._reached))

    def reduce(self, bucket: GradientBucket) -> Future:
        """Reduce one bucket."""
        with profiler_range("hier/gradients/exchange"):
            future = self._reducer.reduce(bucket)
        if bucket.is_last:
            self.ready_order.end_step()
            if self._reached is not None:
                self._reached.clear()
        return future

    def close(self) -> None:
        """Remove the hooks of the parameters."""
        self.ready_order.remove()
        if self._reached is not None:
            self._reached.remove()


def gradient_hook(state: GradientHook, bucket: GradBucket) -> Future:
    """Communication hook in the form of ``DistributedDataParallel.register_comm_hook``."""
    return state.reduce_of_ddp(bucket)


def finished(result: Tensor) -> Future:
    """A future that is already completed."""
    future = open_future(result)
    future.set_result(result)
    return future


def open_future(like: Tensor) -> Future:
    """A future that will hold a tensor on the device of ``like``."""
    return torch.futures.Future(devices=[like.device] if like.is_cuda else None)


class AllReducer:
    """Exact mean over the workers of the ranks of a channel."""

    def __init__(self, channel: Channel) -> None:
        """Average over ``channel``."""
        self.channel = channel

    def reduce(self, bucket: GradientBucket) -> Future:
        """Divide first, then sum: this keeps half precision in range, and gloo has no mean."""
        mean, *others = bucket.buffers
        workers = self.channel.size * len(bucket.buffers)
        if workers > 1:
            mean.div_(workers)
        for other in others:
            mean.add_(other.div_(workers))
        if self.channel.size == 1:
            return finished(mean)
        pending = self.channel.all_reduce_(mean, "gradients")
        return pending.future(nothing_left=bucket.is_last)

    def metrics(self) -> dict[str, float]:
        """No values besides the traffic."""
        return {}


class HookReducer:
    """A user's communication hook, confined to the ranks of a channel and counted."""

    def __init__(self, channel: Channel, config: CommHook) -> None:
        """Set the group of ``channel`` in the hook's state if it has none."""
        self.channel = channel
        self._hook = config.hook
        self._bytes_per_element = config.bytes_per_element
        self._state: Any = config.state
        if self._state is None:
            self._state = channel.group
        self._gave_group = getattr(self._state, "process_group", self) is None
        if self._gave_group:
            self._state.process_group = channel.group

    def reduce(self, bucket: GradientBucket) -> Future:
        """Call the hook; count the bytes that its configuration names for each element."""
        assert bucket.of_ddp is not None, "hooks of users run in DDP alone"
        begun = time.perf_counter()
        buffer = bucket.of_ddp.buffer()
        size = self._bytes_per_element or buffer.itemsize
        elements = buffer.numel()
        is_last = bucket.is_last

        def done(future: Future) -> Tensor:
            result = future.value()
            if is_last:  # nothing is left to compute meanwhile
                self.channel.count_wait(time.perf_counter() - handed_over)
            self.channel.count_ring("gradients", elements * size, time.perf_counter() - begun)
            return result[0] if isinstance(result, list) else result

        future = self._hook(self._state, bucket.of_ddp)
        handed_over = time.perf_counter()
        return future.then(done)

    def close(self) -> None:
        """Remove the group from the hook's state: the next fit may have another one."""
        if self._gave_group:
            self._state.process_group = None
            self._gave_group = False

    def metrics(self) -> dict[str, float]:
        """No values besides the traffic."""
        return {}
