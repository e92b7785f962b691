"""The one communication hook that DDP gets: whole world during warm-up, inside the group after."""

# DDP reads the annotations of a hook as objects: no postponed evaluation in this file.
import time
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_sync import CommHook
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.ready_order import ReadyOrder

Future = torch.futures.Future[Tensor]


class Reducer(Protocol):
    """Turns the gradients of one bucket into their mean over some ranks."""

    def reduce(self, bucket: GradBucket) -> Future:
        """Start reducing ``bucket``, in place; the future holds its buffer."""

    def metrics(self) -> dict[str, float]:
        """What there is to log, by name."""


class GradientHook:
    """State of :func:`gradient_hook`.

    Attributes:
        warming: whether steps are still averaged over the whole world.
        rehearsing: whether gradients are left as they are, because they are none.
        ready_order: of the parameters in the first step.

    """

    def __init__(
        self,
        *,
        warm_up: Reducer,
        in_group: Reducer,
        warming: bool,
        ready_order: ReadyOrder,
        reached: ReachedParameters | None = None,
    ) -> None:
        """Use ``warm_up`` while ``warming``, then ``in_group``; empty ``reached`` at each step."""
        self.warming = warming
        self.rehearsing = False
        self.ready_order = ready_order
        self._warm_up = warm_up
        self._in_group = in_group
        self._reached = reached

    def reduce(self, bucket: GradBucket) -> Future:
        """Reduce one bucket by the reducer in force."""
        if self.rehearsing:
            return finished(bucket.buffer())
        future = (self._warm_up if self.warming else self._in_group).reduce(bucket)
        if bucket.is_last():
            self.ready_order.end_step()
            if self._reached is not None:
                self._reached.clear()
        return future

    def end_warm_up(self) -> None:
        """Reduce in the group from the next step on."""
        self.warming = False

    def close(self) -> None:
        """Take back what was attached to the parameters."""
        self.ready_order.remove()
        if self._reached is not None:
            self._reached.remove()

    def metrics(self) -> dict[str, float]:
        """What the group's reducer has to log."""
        return self._in_group.metrics()


def gradient_hook(state: GradientHook, bucket: GradBucket) -> Future:
    """Communication hook in the form of ``DistributedDataParallel.register_comm_hook``."""
    return state.reduce(bucket)


def finished(result: Tensor) -> Future:
    """A future that is already there."""
    future = open_future(result)
    future.set_result(result)
    return future


def open_future(like: Tensor) -> Future:
    """A future that will hold a tensor on the device of ``like``."""
    return torch.futures.Future(devices=[like.device] if like.is_cuda else None)


class AllReducer:
    """Exact mean over the ranks of a channel."""

    def __init__(self, channel: Channel) -> None:
        """Average over ``channel``."""
        self._channel = channel

    def reduce(self, bucket: GradBucket) -> Future:
        """Divide first, then sum: this keeps half precision in range, and gloo has no mean."""
        buffer = bucket.buffer()
        if self._channel.size == 1:
            return finished(buffer)
        buffer.div_(self._channel.size)
        pending = self._channel.all_reduce_(buffer, "gradients")
        return pending.future(nothing_left=bucket.is_last())

    def metrics(self) -> dict[str, float]:
        """Nothing beyond the traffic."""
        return {}


class HookReducer:
    """A user's communication hook, confined to the ranks of a channel and counted."""

    def __init__(self, channel: Channel, config: CommHook) -> None:
        """Give the hook's state the group of ``channel`` where it names none."""
        self._channel = channel
        self._hook = config.hook
        self._bytes_per_element = config.bytes_per_element
        self._state: Any = config.state
        if self._state is None:
            self._state = channel.group
        elif getattr(self._state, "process_group", channel) is None:
            self._state.process_group = channel.group

    def reduce(self, bucket: GradBucket) -> Future:
        """Call the hook; count what it says to send for each element."""
        begun = time.perf_counter()
        buffer = bucket.buffer()
        size = self._bytes_per_element or buffer.itemsize
        elements = buffer.numel()
        is_last = bucket.is_last()

        def done(future: Future) -> Tensor:
            result = future.value()
            if is_last:  # nothing is left to compute meanwhile
                self._channel.count_wait(time.perf_counter() - handed_over)
            self._channel.count_ring("gradients", elements * size, time.perf_counter() - begun)
            return result[0] if isinstance(result, list) else result

        future = self._hook(self._state, bucket)
        handed_over = time.perf_counter()
        return future.then(done)

    def metrics(self) -> dict[str, float]:
        """Nothing beyond the traffic."""
        return {}
