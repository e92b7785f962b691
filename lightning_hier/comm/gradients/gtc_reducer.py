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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


@dataclass
class _Exact:
    """Tensors whose gradients are averaged exactly: flat mean, and its destination."""

    mean: Tensor
    places: Sequence[Tensor]
    pending: Pending


@dataclass
class _Bucket:
    """One bucket between two stages.

    Attributes:
        mean: gradients of this rank, which become the mean.
        scale: current factor of loss scaling.
        future: future of the mean.
        compressed: tensors that are compressed.
        exact: other tensors, and compressed ones in their first step.
        returned: parameters whose residuals have been added to exact gradients.
        facts: for each rank of the group, whether a value is not finite, and a number for each
            compressed tensor.
        pending: exchange of the facts, then of the payload.
        failed: whether a value of any rank is not finite.

    """

    mean: Tensor
    scale: float
    future: Future
    compressed: list[CompressedTensor] = field(default_factory=list)
    exact: list[_Exact] = field(default_factory=list)
    returned: list[Parameter] = field(default_factory=list)
    facts: Tensor = field(init=False)
    pending: Pending | None = field(init=False)
    failed: bool = False


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
        self.channel = channel
        self._config = config
        self._fixed = None if config.threshold == "auto" else config.threshold
        self._memory = memory
        self._grad_scale = grad_scale
        self._open: list[_Bucket] = []
        # Counts of elements since the density was last logged.
        self._sent = self._elements = 0
        self._warned = False

    @override
    def reduce(self, bucket: GradientBucket) -> Future:
        """Encode this bucket and send the previous one. The last bucket finishes all of them."""
        # A rank alone goes on below only to add the residuals of a run with larger groups.
        if self.channel.size == 1 and not self._memory.tensors:
            return finished(bucket.buffer)
        if bucket.is_first:
            self._open.clear()  # an interrupted backward pass leaves its buckets
        with profiler_range("hier/gtc/encode"):
            encoded, exact = self._encode(bucket)
            gradients = torch.cat(exact) if exact else None
            # As compressed tensors, whose first step is averaged with these. _write_mean scales
            # again.
            if gradients is not None and encoded.scale != 1.0:
                gradients.div_(encoded.scale)
            self._exchange_facts(encoded, gradients)
            self._average_exact(encoded, gradients, exact)
        self._open.append(encoded)
        if len(self._open) > 1:  # the counts of the previous bucket have arrived meanwhile
            self._send(self._open[-2])
        if bucket.is_last:
            self._send(encoded)
            self._finish()
        return encoded.future

    @override
    def metrics(self) -> dict[str, float]:
        """Density since the last call, and norm of the residuals, of this rank."""
        values = {"hier/gtc/residual_norm": self._memory.residual_norm()}
        if self._elements:
            values["hier/gtc/density"] = self._sent / self._elements
        self._sent = self._elements = 0
        return values

    def _encode(self, bucket: GradientBucket) -> tuple[_Bucket, list[Tensor]]:
        """Add residuals, and select elements. Returns also what is averaged exactly."""
        # Read once for a bucket: the mean is scaled by the factor by which it was divided.
        encoded = _Bucket(bucket.buffer, self._grad_scale(), open_future(bucket.buffer))
        exact = []
        for parameter, flat in bucket.tensors():
            absent = parameter in bucket.absent
            # DDP's buckets contain ``.grad`` of such a parameter. With several optimizers, it may
            # be NaN from a skipped step of one of them, and would make all following steps fail.
            if absent and not bool(flat.isfinite().all()):
                flat.zero_()
            if self.channel.size > 1 and self._config.compresses(flat.numel()):
                memory = self._memory.of(parameter, flat, self._fixed)
                tensor = CompressedTensor.encode_(flat, memory, absent=absent, scale=encoded.scale)
                encoded.compressed.append(tensor)
                continue
            exact.append(flat)
            # Added here, but removed only in `finish`: the step may fail on another rank.
            if parameter in self._memory.tensors and not absent:
                flat.add_(self._memory.tensors[parameter].residual, alpha=encoded.scale)
                encoded.returned.append(parameter)
        return encoded, exact

    def _exchange_facts(self, encoded: _Bucket, exact: Tensor | None) -> None:
        """Start to exchange the facts of compressed tensors, and whether all values are finite."""
        finite = all(tensor.finite for tensor in encoded.compressed) and (
            exact is None or bool(exact.isfinite().all())
        )
        # float64 represents every count of up to 2**53 exactly.
        facts = [float(not finite), *(tensor.fact for tensor in encoded.compressed)]
        row = torch.tensor(facts, dtype=torch.float64).to(encoded.mean.device)
        encoded.facts = row.new_empty(self.channel.size * len(row))
        encoded.pending = self.channel.all_gather(encoded.facts, row, "gradient_counts")

    def _average_exact(
        self, bucket: _Bucket, gradients: Tensor | None, places: Sequence[Tensor]
    ) -> None:
        """Start averaging flat gradients of this rank. ``places`` get the mean."""
        if gradients is not None:
            # Divide first, then sum: this keeps half precision in range, and gloo has no mean.
            mean = gradients.div_(self.channel.size)
            pending = self.channel.all_reduce_(mean, "gradients")
            bucket.exact.append(_Exact(mean, places, pending))

    def _send(self, bucket: _Bucket) -> None:
        """Read the facts of all ranks, and start the exchange of what they send."""
        assert bucket.pending is not None
        bucket.pending.wait()
        bucket.pending = None
        # Equal on all ranks, so they skip, choose encodings and move thresholds alike.
        facts = bucket.facts.view(self.channel.size, -1).cpu()
        bucket.failed = bool(facts[:, 0].any())
        if bucket.failed:
            return
        for tensor, facts_of_tensor in zip(bucket.compressed, facts.unbind(1)[1:], strict=True):
            tensor.add_facts(facts_of_tensor)
        present = [tensor for tensor in bucket.compressed if not tensor.skipped]
        sent = [tensor for tensor in present if not tensor.is_first_step]
        if any(sum(tensor.counts) for tensor in sent):
            own, received = payload_rows(sent, self.channel.size)
            bucket.pending = self.channel.all_gather(received.view(-1), own, "gradients")
        # Without a threshold, tensors are averaged exactly.
        first = [tensor.flat for tensor in present if tensor.is_first_step]
        self._average_exact(bucket, torch.cat(first) if first else None, first)

    def _finish(self) -> None:
        """Complete the buckets of this step, and change residuals and thresholds if it counts."""
        # One failed bucket fails the step: thresholds and residuals of all must change together.
        failed = any(bucket.failed for bucket in self._open)
        for bucket in self._open:
            for pending in (*(exact.pending for exact in bucket.exact), bucket.pending):
                if pending is not None:
                    pending.wait()
            if failed:  # also if this rank's gradients are finite, so that all ranks skip the step
                bucket.mean.fill_(math.nan)
            else:
                self._write_mean(bucket)
            bucket.future.set_result(bucket.mean)
        self._open.clear()

    def _write_mean(self, bucket: _Bucket) -> None:
        for exact in bucket.exact:
            if bucket.scale != 1.0:
                exact.mean.mul_(bucket.scale)
            sizes = [place.numel() for place in exact.places]
            torch._foreach_copy_(list(exact.places), list(exact.mean.split(sizes)))
        # Residuals that were added to exact gradients have been sent completely.
        for parameter in bucket.returned:
            del self._memory.tensors[parameter]
        with profiler_range("hier/gtc/decode"):
            for tensor in bucket.compressed:
                tensor.decode_(bucket.scale)
        for tensor in bucket.compressed:
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
