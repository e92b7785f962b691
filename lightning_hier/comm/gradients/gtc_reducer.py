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
    mean_of_workers_,
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
        mean: gradients of the first worker of this rank, which become the mean.
        scale: current factor of loss scaling.
        workers: number of workers of the group.
        future: future of the mean.
        compressed: tensors that are compressed.
        exact: other tensors, and compressed ones in their first step.
        returned: residuals that have been added to exact gradients.
        facts: for each worker of the group, whether a value is not finite, and a number for each
            compressed tensor.
        pending: exchange of the facts, then of the payload.
        failed: whether a value of any worker is not finite.

    """

    mean: Tensor
    scale: float
    workers: int
    future: Future
    compressed: list[CompressedTensor] = field(default_factory=list)
    exact: list[_Exact] = field(default_factory=list)
    returned: list[tuple[GradientMemory, Parameter]] = field(default_factory=list)
    facts: Tensor = field(init=False)
    pending: Pending | None = field(init=False)
    failed: bool = False


class GTCReducer(Reducer):
    """Reduces the gradients of a group by threshold compression.

    Args:
        channel: ranks of the group. A group of one worker sends nothing and keeps its exact
            gradient.
        config: thresholds.
        memories: residuals and thresholds of each worker of this rank.
        grad_scale: returns the current factor of loss scaling. Residuals and thresholds are
            unscaled, so they stay valid when the factor changes.

    """

    def __init__(
        self,
        channel: Channel,
        config: GTC,
        memories: Sequence[GradientMemory],
        *,
        grad_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.channel = channel
        self._config = config
        self._fixed = None if config.threshold == "auto" else config.threshold
        self._memories = memories
        self._grad_scale = grad_scale
        self._open: list[_Bucket] = []
        # Counts of elements since the density was last logged.
        self._sent = self._elements = 0
        self._warned = False

    @override
    def reduce(self, bucket: GradientBucket) -> Future:
        """Encode this bucket and send the previous one. The last bucket finishes all of them."""
        alone = self.channel.size * len(bucket.buffers) == 1
        # A worker alone goes on below only to add the residuals of a run with larger groups.
        if alone and not self._memories[0].tensors:
            return finished(bucket.buffers[0])
        if bucket.is_first:
            self._open.clear()  # an interrupted backward pass leaves its buckets
        with profiler_range("hier/gtc/encode"):
            encoded, gradients, places = self._encode(bucket)
            self._exchange_facts(encoded, gradients)
            self._average_exact(encoded, gradients, places)
        self._open.append(encoded)
        if len(self._open) > 1:  # the counts of the previous bucket have arrived meanwhile
            self._send(self._open[-2])
        if bucket.is_last:
            self._send(encoded)
            self._finish()
        return encoded.future

    @override
    def metrics(self) -> dict[str, float]:
        """Density since the last call, and norm of the residuals, of this rank's workers."""
        norms = [memory.residual_norm() for memory in self._memories]
        values = {"hier/gtc/residual_norm": math.hypot(*norms)}
        if self._elements:
            values["hier/gtc/density"] = self._sent / self._elements
        self._sent = self._elements = 0
        return values

    def _encode(self, bucket: GradientBucket) -> tuple[_Bucket, list[Tensor], list[Tensor]]:
        """Add residuals, and select elements. Returns also exact gradients and their places."""
        mean, workers = bucket.buffers[0], self.channel.size * len(bucket.buffers)
        # Read once for a bucket: the mean is scaled by the factor by which it was divided.
        encoded = _Bucket(mean, self._grad_scale(), workers, open_future(mean))
        memories = [self._memories[worker] for worker in bucket.workers]
        exact: list[Sequence[Tensor]] = []
        for parameter, flats in bucket.tensors():
            absent = [parameter in missing for missing in bucket.absent]
            if any(absent):
                _zero_nonfinite_(flats, absent)
            if workers > 1 and self._config.compresses(flats[0].numel()):
                pairs = zip(memories, flats, strict=True)
                states = [memory.of(parameter, flat, self._fixed) for memory, flat in pairs]
                tensor = CompressedTensor.encode_(flats, states, absent, encoded.scale)
                encoded.compressed.append(tensor)
                continue
            exact.append(flats)
            for memory, flat, missing in zip(memories, flats, absent, strict=True):
                # Added here, but removed only in `finish`: the step may fail on another rank.
                if parameter in memory.tensors and not missing:
                    flat.add_(memory.tensors[parameter].residual, alpha=encoded.scale)
                    encoded.returned.append((memory, parameter))
        # The exact gradients of each worker, one after the other.
        gradients = [torch.cat(flats) for flats in zip(*exact, strict=True)]
        # As compressed tensors, whose first step is averaged with these. _write_mean scales again.
        for own_gradients in gradients if encoded.scale != 1.0 else ():
            own_gradients.div_(encoded.scale)
        return encoded, gradients, [first for first, *_ in exact]

    def _exchange_facts(self, encoded: _Bucket, gradients: Sequence[Tensor]) -> None:
        """Start to exchange the facts of compressed tensors, and whether all values are finite."""
        finite = all(tensor.finite for tensor in encoded.compressed) and all(
            bool(own_gradients.isfinite().all()) for own_gradients in gradients
        )
        # One row for each worker. float64 represents every count of up to 2**53 exactly.
        workers = encoded.workers // self.channel.size
        columns = [[float(not finite)] * workers, *(t.facts for t in encoded.compressed)]
        rows = torch.tensor(columns, dtype=torch.float64).T.reshape(-1).to(encoded.mean.device)
        encoded.facts = rows.new_empty(self.channel.size * rows.numel())
        encoded.pending = self.channel.all_gather(encoded.facts, rows, "gradient_counts")

    def _average_exact(
        self, bucket: _Bucket, gradients: Sequence[Tensor], places: Sequence[Tensor]
    ) -> None:
        """Start averaging flat gradients of this rank's workers. ``places`` get the mean."""
        if places:
            mean = mean_of_workers_(gradients, bucket.workers)
            pending = self.channel.all_reduce_(mean, "gradients")
            bucket.exact.append(_Exact(mean, places, pending))

    def _send(self, bucket: _Bucket) -> None:
        """Read the facts of all workers, and start the exchange of what they send."""
        assert bucket.pending is not None
        bucket.pending.wait()
        bucket.pending = None
        # Equal on all ranks, so they skip, choose encodings and move thresholds alike.
        facts = bucket.facts.view(bucket.workers, -1).cpu()
        bucket.failed = bool(facts[:, 0].any())
        if bucket.failed:
            return
        for tensor, facts_of_tensor in zip(bucket.compressed, facts.unbind(1)[1:], strict=True):
            tensor.add_facts(facts_of_tensor)
        present = [tensor for tensor in bucket.compressed if not tensor.skipped]
        sent = [tensor for tensor in present if not tensor.is_first_step]
        if any(sum(tensor.counts) for tensor in sent):
            rows, received = payload_rows(sent, bucket.workers)
            bucket.pending = self.channel.all_gather(received.view(-1), rows.view(-1), "gradients")
        # Without a threshold, tensors are averaged exactly.
        first = [tensor.flats for tensor in present if tensor.is_first_step]
        gradients = [torch.cat(flats) for flats in zip(*first, strict=True)]
        self._average_exact(bucket, gradients, [place for place, *_ in first])

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
        for memory, parameter in bucket.returned:
            del memory.tensors[parameter]
        with profiler_range("hier/gtc/decode"):
            for tensor in bucket.compressed:
                tensor.decode_(bucket.scale)
        for tensor in bucket.compressed:
            if not tensor.skipped:
                self._adapt_threshold(tensor)

    def _adapt_threshold(self, tensor: CompressedTensor) -> None:
        """Count the elements sent of a tensor, and set the threshold of the next step."""
        self._sent += sum(map(len, tensor.words))
        self._elements += sum(map(len, tensor.flats)) if tensor.words else 0
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


def _zero_nonfinite_(flats: Sequence[Tensor], absent: Sequence[bool]) -> None:
    """Set values that are not finite to zero if a parameter has no gradient in this step.

    DDP's buckets contain ``.grad`` of such a parameter. With several optimizers, it may be NaN from
    a skipped step of one of them, and would make every following step fail as well.
    """
    for flat, missing in zip(flats, absent, strict=True):
        if missing and not bool(flat.isfinite().all()):
            flat.zero_()
