"""Residuals of an earlier run for gradients that this run does not compress."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.gradient_hook import Future, finished, open_future
from lightning_hier.comm.worker import GradientMemory


class ReturnedResiduals:
    """Adds residuals to exact gradients, each once, in a step that is finite.

    A parameter keeps its residual until then, because loss scaling skips other steps.

    Args:
        memories: of each worker of this rank; residuals that were added are removed from them.
        grad_scale: returns the present factor of loss scaling.

    """

    def __init__(self, memories: Sequence[GradientMemory], grad_scale: Callable[[], float]) -> None:
        self._memories = memories
        self._grad_scale = grad_scale
        self._added: list[tuple[GradientMemory, Parameter]] = []

    def begin(self) -> None:
        """Start a step; drop the record of an interrupted one."""
        self._added.clear()

    def add_(self, bucket: GradientBucket, index: int, *, below: float = math.inf) -> None:
        """Add the residuals of tensors with fewer elements to a worker's gradients, in place."""
        memory = self._memories[bucket.workers[index]]
        pieces = bucket.pieces(bucket.buffers[index])
        for parameter, flat in zip(bucket.parameters, pieces, strict=True):
            left = memory.tensors.get(parameter)
            if left is None or flat.numel() >= below or parameter in bucket.absent[index]:
                continue
            flat.add_(left.residual, alpha=self._grad_scale())
            self._added.append((memory, parameter))

    def end(self, *, failed: bool) -> None:
        """End a step whose gradients are complete on all ranks; remove the residuals added."""
        for memory, parameter in [] if failed else self._added:
            del memory.tensors[parameter]
        self._added.clear()


class ExactWithResiduals:
    """Exact gradients of a group of one worker, plus residuals from a larger group.

    While there are residuals, a step with a value that is not finite becomes NaN in all gradients,
    as in larger groups: it is skipped as a whole, and residuals are added once.

    Args:
        memory: of the worker.
        returned: adds its residuals.

    """

    def __init__(self, memory: GradientMemory, returned: ReturnedResiduals) -> None:
        self._memory = memory
        self._returned = returned
        self._open: list[tuple[Tensor, Future]] = []
        self._finite = True

    def reduce(self, bucket: GradientBucket) -> Future:
        """Add residuals; the futures of a step complete with its last bucket."""
        buffer = bucket.buffers[0]
        if not self._memory.tensors:
            return finished(buffer)
        if bucket.is_first:
            self._open, self._finite = [], True
            self._returned.begin()
        self._returned.add_(bucket, 0)
        self._finite = self._finite and all(
            bool(flat.isfinite().all())
            for parameter, flat in zip(bucket.parameters, bucket.pieces(buffer), strict=True)
            if parameter not in bucket.absent[0]
        )
        future = open_future(buffer)
        self._open.append((buffer, future))
        if bucket.is_last:
            self._finish()
        return future

    def _finish(self) -> None:
        self._returned.end(failed=not self._finite)
        for buffer, future in self._open:
            if not self._finite:
                buffer.fill_(math.nan)
            future.set_result(buffer)
        self._open = []
