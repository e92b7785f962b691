"""Buckets of gradients, and the reducers that average them exactly or by a hook of the user."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Parameter

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_sync import CommHook

Future = torch.futures.Future[Tensor]


@dataclass(frozen=True)
class GradientBucket:
    """Flat gradients of some parameters.

    Attributes:
        parameters: in the order in which their gradients follow each other.
        buffer: their gradients, which become the mean.
        absent: parameters without a gradient on this rank.
        is_first: whether it is the first bucket of a step.
        is_last: whether it is the last.
        of_ddp: DDP's own bucket, which hooks of users get.

    """

    parameters: Sequence[Parameter]
    buffer: Tensor
    absent: Collection[Parameter] = ()
    is_first: bool = True
    is_last: bool = True
    of_ddp: GradBucket | None = None

    def tensors(self) -> Iterator[tuple[Parameter, Tensor]]:
        """Each parameter with its flat gradient, as a view of the buffer."""
        flats = self.buffer.split([parameter.numel() for parameter in self.parameters])
        return zip(self.parameters, flats, strict=True)


class Reducer:
    """Reduces the gradients of buckets over some ranks. This one leaves each rank its own.

    Attributes:
        channel: channel of these ranks.

    """

    def __init__(self, channel: Channel) -> None:
        """Reduce for the ranks of ``channel``."""
        self.channel = channel

    def reduce(self, bucket: GradientBucket) -> Future:
        """Start reducing ``bucket``, in place. The result of the future is its buffer."""
        return finished(bucket.buffer)

    def metrics(self) -> dict[str, float]:
        """Values to log, by name, besides the traffic."""
        return {}

    def close(self) -> None:
        """End the use of the process group."""


class AllReducer(Reducer):
    """Exact mean over the ranks of a channel."""

    def reduce(self, bucket: GradientBucket) -> Future:
        """Start to sum the ranks' shares of the mean."""
        if self.channel.size == 1:
            return finished(bucket.buffer)
        # Divide first, then sum: this keeps half precision in range, and gloo has no mean.
        share = bucket.buffer.div_(self.channel.size)
        pending = self.channel.all_reduce_(share, "gradients")
        return pending.future(nothing_left=bucket.is_last)


class HookReducer(Reducer):
    """A communication hook of the user, restricted to the ranks of a channel, with its traffic."""

    def __init__(self, channel: Channel, config: CommHook) -> None:
        """Set the group of ``channel`` in the hook's state if it has none."""
        super().__init__(channel)
        self._hook = config.hook
        self._bytes_per_element = config.bytes_per_element
        self._state: Any = config.state
        if self._state is None:
            self._state = channel.group
        # Only a state that has the attribute and no group, with which its hook would use the world.
        # (A state without the attribute yields `self`, which is not None.)
        self._gave_group = getattr(self._state, "process_group", self) is None
        if self._gave_group:
            self._state.process_group = channel.group

    def reduce(self, bucket: GradientBucket) -> Future:
        """Call the hook, and count the bytes per element that its configuration states."""
        assert bucket.of_ddp is not None, "hooks of users run only in DDP"
        begun = time.perf_counter()
        buffer = bucket.of_ddp.buffer()
        payload_bytes = buffer.numel() * (self._bytes_per_element or buffer.itemsize)
        is_last = bucket.is_last

        def done(future: Future) -> Tensor:
            result = future.value()
            if is_last:  # no computation is left that would overlap
                waited = time.perf_counter() - handed_over
                self.channel.traffic.add_wait(self.channel.tier, waited)
            self.channel.count_all_reduce("gradients", payload_bytes, time.perf_counter() - begun)
            # Some hooks return the list that is the value of a future of torch's collectives.
            return result[0] if isinstance(result, list) else result

        future = self._hook(self._state, bucket.of_ddp)
        handed_over = time.perf_counter()
        return future.then(done)

    def close(self) -> None:
        """Remove the group from the hook's state, because the next fit may have another one."""
        if self._gave_group:
            self._state.process_group = None
            self._gave_group = False


def open_future(like: Tensor) -> Future:
    """A future that will hold a tensor on the device of ``like``."""
    # With its device, so that a wait orders the streams of the GPU and does not block the host.
    return torch.futures.Future(devices=[like.device] if like.is_cuda else None)


def finished(result: Tensor) -> Future:
    """A future that is already completed."""
    future = open_future(result)
    future.set_result(result)
    return future
