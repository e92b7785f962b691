"""What a run has left unsent of gradients that this one does not compress."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.gradient_hook import Future, finished, open_future
from lightning_hier.comm.worker import GradientMemory


class ReturnedResiduals:
    """Adds residuals to exact gradients, each once, in a step that counts.

    A parameter keeps its residual until a step uses it and is finite: loss scaling skips others.

    Args:
        memories: of each worker that this rank plays; lose what is handed back.
        grad_scale: the factor by which gradients are scaled at this moment.

    """

    def __init__(self, memories: Sequence[GradientMemory], grad_scale: Callable[[], float]) -> None:
        self._memories = memories
        self._grad_scale = grad_scale
        self._added: list[tuple[GradientMemory, Parameter]] = []

    def begin(self) -> None:
        """Start a step; forget one that was cut off."""
        self._added.clear()

    def add_(self, bucket: GradientBucket, turn: int, *, below: float = math.inf) -> None:
        """Add what there is for tensors of fewer elements, in place, to one worker's gradients."""
        memory = self._memories[bucket.workers[turn]]
        pieces = bucket.pieces(bucket.buffers[turn])
        for parameter, flat in zip(bucket.parameters, pieces, strict=True):
            left = memory.tensors.get(parameter)
            if left is None or flat.numel() >= below or parameter in bucket.absent[turn]:
                continue
            flat.add_(left.residual, alpha=self._grad_scale())
            self._added.append((memory, parameter))

    def end(self, *, failed: bool) -> None:
        """The gradients of the step are complete, on all ranks; drop what was added to them."""
        for memory, parameter in [] if failed else self._added:
            del memory.tensors[parameter]
        self._added.clear()


class ExactWithResiduals:
    """Gradients of a worker that is a group by itself: exact, with what larger groups have left.

    A step that is not finite somewhere is NaN everywhere, as in larger groups, while residuals are
    left: nothing of it is used, and they are added once.

    Args:
        memory: of the worker.
        returned: hands its residuals back.

    """

    def __init__(self, memory: GradientMemory, returned: ReturnedResiduals) -> None:
        self._memory = memory
        self._returned = returned
        self._open: list[tuple[Tensor, Future]] = []
        self._finite = True

    def reduce(self, bucket: GradientBucket) -> Future:
        """Add what there is; the futures of a step are there with its last bucket."""
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
