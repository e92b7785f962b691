"""Gradient threshold compression as a reducer of DDP buckets.

A step goes through each bucket in three moves, all issued from the thread in which DDP calls the
hook and in the order of the buckets, because collectives that are issued from the completion of
others run in differing order on different ranks:

begin
    add the residuals, select what exceeds the threshold, and start exchanging how much that is;
send
    once the counts are known (while the next bucket is computed), start exchanging the payload;
finish
    with the last bucket: keep the residuals, and write the mean gradient into the bucket.

Only ``finish`` changes residuals: by then every rank of the group knows whether any gradient of
this step, in any bucket on any rank, was NaN or inf. Such a step leaves all residuals and
thresholds as they were and gives NaN everywhere, so that loss scaling skips it on all ranks alike.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn import Parameter

from lightning_hier.algorithms.encoding import Scratch
from lightning_hier.algorithms.threshold import first_threshold, next_threshold
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.gradients.gradient_hook import Future, finished, open_future
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.gtc_payload import Payload, Selection
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.worker import GradientMemory

# A tensor of which this share is sent at a fixed threshold gets more gradient than it can send.
_SATURATED = 0.5


@dataclass
class Density:
    """Elements sent and elements compressed, of this rank, since the last reading."""

    sent: int = 0
    elements: int = 0

    def read(self) -> float:
        """Share of the elements that was sent; starts counting anew. NaN if there were none."""
        share = self.sent / self.elements if self.elements else math.nan
        self.sent = self.elements = 0
        return share


@dataclass
class _Bucket:
    """One bucket between its begin and its finish."""

    buffer: Tensor
    scale: float
    selections: list[Selection]
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
        channel: the group. A group of one rank sends nothing and keeps its exact gradient.
        config: thresholds.
        memory: residuals and thresholds of the worker that this rank plays.
        grad_scale: the factor by which gradients are scaled at this moment (fp16 loss scaling).
            Residuals and thresholds are kept unscaled, so that they outlive a change of scale.
        reached: where parameters may be without gradient in a step: those that have some. DDP does
            not write back the gradient of a parameter that no rank used, so nothing may be sent for
            it. None: all have.

    """

    def __init__(
        self,
        channel: Channel,
        config: GTC,
        memory: GradientMemory,
        *,
        grad_scale: Callable[[], float] = lambda: 1.0,
        reached: ReachedParameters | None = None,
    ) -> None:
        self._channel = channel
        self._config = config
        self._memory = memory
        self._grad_scale = grad_scale
        self._reached = reached
        self._scratch = Scratch()
        self._open: list[_Bucket] = []
        self._warned = False
        self.density = Density()

    def reduce(self, bucket: GradBucket) -> Future:
        """Begin this bucket, send the one before it, and finish all with the last one."""
        if self._channel.size == 1:
            self._return_residuals(bucket)
            return finished(bucket.buffer())
        if bucket.index() == 0:
            self._open.clear()  # a backward pass that was cut off leaves its buckets behind
        begun = self._begin(bucket)
        self._open.append(begun)
        if len(self._open) > 1:
            self._send(self._open[-2])
        if bucket.is_last():
            self._send(self._open[-1])
            self._finish()
        return begun.future

    def metrics(self) -> dict[str, float]:
        """Density since the last reading and the norm of the residuals, of this rank."""
        found = {"hier/gtc/residual_norm": self._memory.residual_norm()}
        density = self.density.read()
        return found if math.isnan(density) else found | {"hier/gtc/density": density}

    def _return_residuals(self, bucket: GradBucket) -> None:
        """Add what a run of larger groups has left unsent to the exact gradient, once."""
        if not self._memory.tensors:
            return
        offset = 0
        for parameter in cast(list[Parameter], bucket.parameters()):
            flat = bucket.buffer()[offset : offset + parameter.numel()]
            offset += parameter.numel()
            memory = self._memory.tensors.pop(parameter, None)
            if memory is not None:
                flat.add_(memory.residual, alpha=self._grad_scale())

    def _begin(self, bucket: GradBucket) -> _Bucket:
        buffer = bucket.buffer()
        scale = self._grad_scale()
        exact: list[Tensor] = []
        selections: list[Selection] = []
        offset = 0
        for parameter in cast(list[Parameter], bucket.parameters()):
            flat = buffer[offset : offset + parameter.numel()]
            offset += parameter.numel()
            if parameter.numel() < self._config.dense_below:
                exact.append(flat)
            else:
                fixed = None if self._config.threshold == "auto" else self._config.threshold
                memory = self._memory.of(parameter, flat, fixed)
                absent = self._reached is not None and parameter not in self._reached
                selections.append(
                    Selection.of(flat, memory, self._scratch, absent=absent, scale=scale)
                )
        exact_flat = None
        if exact:
            exact_flat = torch.cat(exact)
            if scale != 1.0:
                exact_flat.div_(scale)
            exact_flat.div_(self._channel.size)
        finite = all(selection.finite for selection in selections) and (
            exact_flat is None or bool(exact_flat.isfinite().all())
        )
        own = [0.0 if finite else 1.0]
        own += [fact for selection in selections for fact in selection.facts]
        own_facts = torch.tensor(own, dtype=torch.float64, device=buffer.device)
        facts = own_facts.new_empty(self._channel.size * len(own))
        return _Bucket(
            buffer=buffer,
            scale=scale,
            selections=selections,
            facts=facts,
            facts_pending=self._channel.all_gather(facts, own_facts, "gradient_counts"),
            exact=exact,
            exact_flat=exact_flat,
            exact_pending=None
            if exact_flat is None
            else self._channel.all_reduce_(exact_flat, "gradients"),
            future=open_future(buffer),
        )

    def _send(self, bucket: _Bucket) -> None:
        bucket.facts_pending.wait()
        facts = bucket.facts.view(self._channel.size, -1).cpu()
        bucket.facts = facts
        if not self._failed(bucket):
            bucket.payload = Payload(bucket.selections, facts[:, 1:], self._channel)

    @staticmethod
    def _failed(bucket: _Bucket) -> bool:
        return bool(bucket.facts[:, 0].any())

    def _finish(self) -> None:
        failed = any(self._failed(bucket) for bucket in self._open)
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
            bucket.payload.settle(bucket.scale)
        for selection in bucket.selections:
            self._count(selection)
            self._move_threshold(selection)

    def _count(self, selection: Selection) -> None:
        if selection.skipped or selection.memory.threshold is None:
            return
        self.density.sent += sum(words.numel() for words in selection.words)
        self.density.elements += selection.flat.numel()

    def _move_threshold(self, selection: Selection) -> None:
        memory = selection.memory
        if selection.skipped:
            return
        elements = selection.flat.numel() * self._channel.size
        if self._config.threshold != "auto":
            self._warn_if_saturated(selection.sent / elements, memory.threshold)
        elif memory.threshold is None:
            memory.threshold = first_threshold(selection.group_rms, self._config.density)
        else:
            memory.threshold = next_threshold(
                memory.threshold,
                sent=selection.sent,
                elements=elements,
                density=self._config.density,
            )

    def _warn_if_saturated(self, share: float, threshold: float | None) -> None:
        if share > _SATURATED and not self._warned:
            self._warned = True
            warnings.warn(
                f"GTC sends {share:.0%} of a tensor at threshold={threshold:g}: each element can "
                "send only one threshold a step, so the residual of larger gradients grows without "
                "limit. Raise the threshold, or use threshold='auto'.",
                stacklevel=2,
            )
