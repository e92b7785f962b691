"""Gradient threshold compression as a reducer of buckets.

Each bucket passes three stages. All run in the thread in which DDP calls the hook and in the order
of the buckets: collectives that are started when others complete would run in different orders on
different ranks.

begin
    Add the residuals, select elements, and start the exchange of their number.
send
    Start the exchange of the payload, while the next bucket is computed.
finish
    With the last bucket: update the residuals, and write the mean gradient into the bucket.

Only ``finish`` changes residuals. By then the counts of all buckets have been exchanged, and with
them whether any gradient of the step was NaN or inf on any rank. Such a step leaves all residuals
and thresholds unchanged and gives NaN on all ranks, so loss scaling skips it on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.gradient_hook import Future, open_future
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.gtc_payload import Payload
from lightning_hier.comm.gradients.gtc_selection import Selection
from lightning_hier.comm.gradients.gtc_thresholds import Thresholds
from lightning_hier.comm.gradients.returned_residuals import (
    ExactWithResiduals,
    ReturnedResiduals,
)
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import GradientMemory


@dataclass
class _Bucket:
    """One bucket between begin and finish; ``rows`` has the selections of each worker."""

    buffer: Tensor
    scale: float
    rows: list[list[Selection]]
    facts: Tensor
    facts_pending: Pending
    exact: list[Tensor]
    exact_flat: Tensor | None
    exact_pending: Pending | None
    future: Future
    payload: Payload | None = field(default=None)


class GTCReducer:
    """Reduces the gradients of a group by threshold compression.

    Args:
        channel: ranks of the group. A group of one worker sends nothing and keeps its exact
            gradient.
        config: thresholds.
        memories: residuals and thresholds of each worker of this rank.
        grad_scale: returns the present factor of loss scaling. Residuals and thresholds are
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
        self._memories = memories
        self._grad_scale = grad_scale
        self._returned = ReturnedResiduals(memories, grad_scale)
        self._alone = ExactWithResiduals(memories[0], self._returned)
        self._open: list[_Bucket] = []
        self._thresholds = Thresholds(config)

    def reduce(self, bucket: GradientBucket) -> Future:
        """Begin this bucket, send the previous one, and finish all with the last one."""
        if self.channel.size * len(bucket.buffers) == 1:
            return self._alone.reduce(bucket)
        if bucket.is_first:
            self._open.clear()  # an interrupted backward pass leaves its buckets
            self._returned.begin()
        with profiler_range("hier/gtc/encode"):
            begun = self._begin(bucket)
        self._open.append(begun)
        if len(self._open) > 1:
            self._send(self._open[-2])
        if bucket.is_last:
            self._send(self._open[-1])
            self._finish()
        return begun.future

    def metrics(self) -> dict[str, float]:
        """Density since the last call and norm of the residuals, of the workers of this rank."""
        norms = [memory.residual_norm() for memory in self._memories]
        found = {"hier/gtc/residual_norm": math.hypot(*norms)}
        density = self._thresholds.read_density()
        return found if math.isnan(density) else found | {"hier/gtc/density": density}

    def _begin(self, bucket: GradientBucket) -> _Bucket:
        scale = self._grad_scale()
        mean = bucket.buffers[0]
        exact: list[Tensor] = []
        exact_flat = None
        rows, facts = [], []
        for index, buffer in enumerate(bucket.buffers):
            pieces = bucket.pieces(buffer)
            _zero_absent_(bucket, index, pieces)
            row = self._select(bucket, index, pieces, scale)
            finite = all(selection.finite for selection in row)
            small = [flat for flat in pieces if flat.numel() < self._config.dense_below]
            self._returned.add_(bucket, index, below=self._config.dense_below)
            exact = exact or small
            if small:
                own = torch.cat(small)
                finite = self._unscale_(own, scale, workers=len(bucket.buffers)) and finite
                exact_flat = own if exact_flat is None else exact_flat.add_(own)
            rows.append(row)
            facts.append(0.0 if finite else 1.0)
            facts += [fact for selection in row for fact in selection.facts]
        own_facts = torch.tensor(facts, dtype=torch.float64, device=mean.device)
        every = own_facts.new_empty(self.channel.size * len(facts))
        return _Bucket(
            buffer=mean,
            scale=scale,
            rows=rows,
            facts=every,
            facts_pending=self.channel.all_gather(every, own_facts, "gradient_counts"),
            exact=exact,
            exact_flat=exact_flat,
            exact_pending=None
            if exact_flat is None
            else self.channel.all_reduce_(exact_flat, "gradients"),
            future=open_future(mean),
        )

    def _select(
        self, bucket: GradientBucket, index: int, pieces: Sequence[Tensor], scale: float
    ) -> list[Selection]:
        """Selections of one worker from the tensors that are compressed."""
        memory, absent = self._memories[bucket.workers[index]], bucket.absent[index]
        fixed = None if self._config.threshold == "auto" else self._config.threshold
        return [
            Selection.of(
                flat,
                memory.of(parameter, flat, fixed),
                absent=parameter in absent,
                scale=scale,
            )
            for parameter, flat in zip(bucket.parameters, pieces, strict=True)
            if flat.numel() >= self._config.dense_below
        ]

    def _unscale_(self, flat: Tensor, scale: float, *, workers: int) -> bool:
        """Divide a gradient by scale and workers, in place; returns whether it is finite."""
        if scale != 1.0:
            flat.div_(scale)
        flat.div_(self.channel.size * workers)
        return bool(flat.isfinite().all())

    def _send(self, bucket: _Bucket) -> None:
        bucket.facts_pending.wait()
        facts = bucket.facts.view(self.channel.size * len(bucket.rows), -1).cpu()
        bucket.facts = facts
        if not self._failed(bucket):
            bucket.payload = Payload(bucket.rows, facts[:, 1:], self.channel)

    @staticmethod
    def _failed(bucket: _Bucket) -> bool:
        return bool(bucket.facts[:, 0].any())

    def _finish(self) -> None:
        failed = any(self._failed(bucket) for bucket in self._open)
        self._returned.end(failed=failed)
        for bucket in self._open:
            self._write_mean(bucket, failed=failed)
            bucket.future.set_result(bucket.buffer)
        self._open.clear()

    def _write_mean(self, bucket: _Bucket, *, failed: bool) -> None:
        if bucket.exact_pending is not None:
            bucket.exact_pending.wait()
        if bucket.payload is not None:
            bucket.payload.wait()
        if failed:
            bucket.buffer.fill_(math.nan)
            return
        if bucket.exact_flat is not None:
            if bucket.scale != 1.0:
                bucket.exact_flat.mul_(bucket.scale)
            sizes = [flat.numel() for flat in bucket.exact]
            torch._foreach_copy_(bucket.exact, list(bucket.exact_flat.split(sizes)))
        if bucket.payload is not None:
            with profiler_range("hier/gtc/decode"):
                bucket.payload.decode_(bucket.scale)
        for row in bucket.rows:
            for selection in row:
                self._thresholds.follow(selection, workers=len(bucket.facts))


def _zero_absent_(bucket: GradientBucket, index: int, pieces: Sequence[Tensor]) -> None:
    """Zero values that are not finite where a parameter has no gradient in this step.

    DDP's buckets hold ``.grad`` of such a parameter. With several optimizers it may be NaN from a
    step that one of them skipped, and would make every following step fail as well.
    """
    for parameter, flat in zip(bucket.parameters, pieces, strict=True):
        if parameter in bucket.absent[index] and not bool(flat.isfinite().all()):
            flat.zero_()
