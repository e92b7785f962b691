"""Gradient threshold compression as a reducer of buckets.

Each bucket passes through three stages. All run in the thread in which DDP calls the hook, in the
order of the buckets. Collectives that were started when others complete would run in different
orders on different ranks.

encode
    Add the residuals, select elements, and start the exchange of their number.
send
    Start the exchange of the payload, while the next bucket is computed.
finish
    With the last bucket: update the residuals, and write the mean gradient into the bucket.

Only ``finish`` changes residuals. By then the counts of all buckets have been exchanged, and with
them whether any gradient of the step was NaN or inf on any rank. Such a step leaves all residuals
and thresholds unchanged and gives NaN on all ranks, so loss scaling skips it on all of them.

Tensors that are not compressed are averaged exactly. If they have residuals of an earlier run with
other settings, these are added once, in the first finite step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from typing_extensions import override

from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.gtc_tensor import CompressedTensor, payload_rows
from lightning_hier.comm.gradients.reducers import (
    Future,
    GradientBucket,
    Reducer,
    finished,
    open_future,
)
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import GradientMemory

# Fraction of sent elements above which gradients are too large for a fixed threshold.
_SATURATED = 0.5


class _Exact(NamedTuple):
    """Tensors whose gradients are averaged exactly: flat mean, and its destination."""

    mean: Tensor
    places: Sequence[Tensor]
    pending: Pending


class GTCReducer(Reducer):
    """Reduces the gradients of a group by threshold compression.

    Args:
        channel: ranks of the group. A group of one rank sends nothing and keeps its exact gradient.
        config: thresholds.
        memory: residuals and thresholds of this rank.
        grad_scale: returns the current factor of loss scaling. Residuals and thresholds are
            unscaled, so they stay valid when the factor changes.

    """

    def __init__(
        self,
        channel: Channel,
        config: GTC,
        memory: GradientMemory,
        *,
        grad_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        super().__init__(channel)
        self._config = config
        self._fixed = None if config.threshold == "auto" else config.threshold
        self._memory = memory
        self._grad_scale = grad_scale
        # Stages of the buckets of this step, and whether a value of any rank is not finite in it.
        self._open: list[Iterator[None]] = []
        self._failed = False
        # Counts of elements since the density was last logged.
        self._sent = self._elements = 0
        self._warned = False

    @override
    def reduce(self, bucket: GradientBucket) -> Future:
        """Encode this bucket and send the previous one. The last bucket finishes all of them."""
        # A rank alone goes on below only to add the residuals of a run with larger groups.
        if self.channel.size == 1 and not self._memory.tensors:
            return finished(bucket.buffer)
        if bucket.is_first:  # an interrupted backward pass leaves its buckets
            self._open, self._failed = [], False
        future = open_future(bucket.buffer)
        self._open.append(self._stages(bucket, future))
        # Each call runs one stage. The counts of the previous bucket have arrived meanwhile.
        for stages in reversed(self._open[-2:]):
            next(stages)
        if bucket.is_last:
            next(self._open[-1])
            # One failed bucket fails the step: thresholds and residuals of all change together.
            for stages in self._open:
                next(stages, None)
            self._open = []
        return future

    @override
    def metrics(self) -> dict[str, float]:
        """Density since the last call, and norm of the residuals, of this rank."""
        values = {"hier/gtc/residual_norm": self._memory.residual_norm()}
        if self._elements:
            values["hier/gtc/density"] = self._sent / self._elements
        self._sent = self._elements = 0
        return values

    def _stages(self, bucket: GradientBucket, future: Future) -> Iterator[None]:
        """The three stages of a bucket, whose mean is then the result of ``future``."""
        # Read once for a bucket: the mean is scaled by the factor by which it was divided.
        scale = self._grad_scale()
        with profiler_range("hier/gtc/encode"):
            compressed, places, returned = self._encode(bucket, scale)
            gradients = torch.cat(places) if places else None
            # As compressed tensors, whose first step is averaged with these. Their means are
            # scaled again.
            if gradients is not None and scale != 1.0:
                gradients.div_(scale)
            facts, pending = self._exchange_facts(compressed, gradients, bucket.buffer.device)
            exact = [] if gradients is None else [self._average(gradients, places)]
        yield
        pending.wait()
        # Equal on all ranks, so they skip, choose encodings and move thresholds alike.
        of_ranks = facts.view(self.channel.size, -1).cpu()
        self._failed = self._failed or bool(of_ranks[:, 0].any())
        payload = None
        if not self._failed:
            for tensor, own in zip(compressed, of_ranks.unbind(1)[1:], strict=True):
                tensor.add_facts(own)
            present = [tensor for tensor in compressed if not tensor.skipped]
            payload = self._send([tensor for tensor in present if not tensor.is_first_step])
            # Without a threshold, tensors are averaged exactly.
            if first := [tensor.flat for tensor in present if tensor.is_first_step]:
                exact.append(self._average(torch.cat(first), first))
        yield
        for started in (*(own.pending for own in exact), payload):
            if started is not None:
                started.wait()
        if self._failed:  # also if this rank's gradients are finite: all ranks skip the step
            bucket.buffer.fill_(math.nan)
        else:
            self._write_mean(compressed, exact, scale)
            # Residuals that were added to exact gradients have been sent completely.
            for parameter in returned:
                del self._memory.tensors[parameter]
        future.set_result(bucket.buffer)

    def _encode(
        self, bucket: GradientBucket, scale: float
    ) -> tuple[list[CompressedTensor], list[Tensor], list[Parameter]]:
        """Add residuals, and select elements.

        Returns:
            Tensors that are compressed, gradients that are averaged exactly, and parameters whose
            residuals have been added to the latter.

        """
        compressed, exact, returned = [], [], []
        for parameter, flat in bucket.tensors():
            absent = parameter in bucket.absent
            # DDP's buckets contain ``.grad`` of such a parameter. With several optimizers, it may
            # be NaN from a skipped step of one of them, and would make all following steps fail.
            if absent and not bool(flat.isfinite().all()):
                flat.zero_()
            if self.channel.size > 1 and self._config.compresses(flat.numel()):
                memory = self._memory.of(parameter, flat, self._fixed)
                tensor = CompressedTensor.encode_(flat, memory, absent=absent, scale=scale)
                compressed.append(tensor)
                continue
            exact.append(flat)
            # Added here, but removed only in the end: the step may fail on another rank.
            if parameter in self._memory.tensors and not absent:
                flat.add_(self._memory.tensors[parameter].residual, alpha=scale)
                returned.append(parameter)
        return compressed, exact, returned

    def _exchange_facts(
        self, compressed: Sequence[CompressedTensor], exact: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Pending]:
        """Start to exchange whether all values are finite, and a number for each tensor."""
        finite = all(tensor.finite for tensor in compressed) and (
            exact is None or bool(exact.isfinite().all())
        )
        # float64 represents every count of up to 2**53 exactly.
        own = [float(not finite), *(tensor.fact for tensor in compressed)]
        row = torch.tensor(own, dtype=torch.float64).to(device)
        facts = row.new_empty(self.channel.size * len(row))
        return facts, self.channel.all_gather(facts, row, "gradient_counts")

    def _average(self, gradients: Tensor, places: Sequence[Tensor]) -> _Exact:
        """Start averaging flat gradients of this rank. ``places`` get the mean."""
        # Divide first, then sum: this keeps half precision in range, and gloo has no mean.
        mean = gradients.div_(self.channel.size)
        return _Exact(mean, places, self.channel.all_reduce_(mean, "gradients"))

    def _send(self, tensors: Sequence[CompressedTensor]) -> Pending | None:
        """Start the exchange of payloads, if any rank sends something."""
        if not any(sum(tensor.counts) for tensor in tensors):
            return None
        own, received = payload_rows(tensors, self.channel.size)
        return self.channel.all_gather(received.view(-1), own, "gradients")

    def _write_mean(
        self, compressed: Sequence[CompressedTensor], exact: Sequence[_Exact], scale: float
    ) -> None:
        for own in exact:
            if scale != 1.0:
                own.mean.mul_(scale)
            sizes = [place.numel() for place in own.places]
            torch._foreach_copy_(list(own.places), list(own.mean.split(sizes)))
        with profiler_range("hier/gtc/decode"):
            for tensor in compressed:
                tensor.decode_(scale)
        for tensor in compressed:
            if not tensor.skipped:
                self._adapt_threshold(tensor)

    def _adapt_threshold(self, tensor: CompressedTensor) -> None:
        """Count the elements sent of a tensor, and set the threshold of the next step."""
        if tensor.words is not None:
            self._sent += len(tensor.words)
            self._elements += len(tensor.flat)
        if self._fixed is None:
            tensor.adapt_threshold(self._config.share)
        elif tensor.sent_share > _SATURATED and not self._warned:
            self._warned = True
            warnings.warn(
                f"GTC sends {tensor.sent_share:.0%} of a tensor at "
                f"threshold={self._fixed:g}: an element sends at most the threshold per "
                "step, so residuals of larger gradients grow without limit. Raise the threshold, "
                "or use threshold='auto'.",
                stacklevel=2,
            )
