"""The gradients of several workers that train one model on one rank, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.gradient_hook import GradientHook
from lightning_hier.comm.gradients.memory_order import flattened, shaped
from lightning_hier.comm.gradients.reached import reached_by_any

# As DDP's: long enough that a collective is worth its start.
_BUCKET_BYTES = 25 * 1024**2


class WorkerGradients:
    """Keeps each worker's gradients apart until all have made theirs, then has them reduced.

    DDP's reducer takes one backward pass for a step, so it stays out of this: the gradients are
    handed over after the backward passes, in buckets of their own.

    Args:
        parameters: that are trained.
        hook: reduces.
        before: what did this for fewer parameters, in whose step this one goes on.

    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        hook: GradientHook,
        before: WorkerGradients | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._hook = hook
        self._away: dict[int, dict[Parameter, Tensor]] = {} if before is None else before._away

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Have ``.grad`` hold the gradients of a worker meanwhile, and of nobody afterwards."""
        self._put(self._away.pop(worker, {}))
        try:
            yield
        finally:
            made = {own: own.grad for own in self._parameters}
            self._away[worker] = {own: held for own, held in made.items() if held is not None}
            self._put({})

    def reduce(self, workers: Sequence[int]) -> None:
        """Have ``.grad`` hold the mean over these workers, and those of the other ranks.

        A parameter that has no gradient on any worker is left without one. A collective of the
        channel of the hook; all its ranks must hand over as many workers.
        """
        gradients = [self._away.pop(worker) for worker in workers]
        reached = self._reached(gradients)
        buckets = list(_buckets(self._parameters))
        futures = []
        for bucket in buckets:
            absent = [set(bucket) - own.keys() for own in gradients]
            begun = GradientBucket(
                bucket,
                [_taken_flat(bucket, own) for own in gradients],
                absent,
                workers,
                is_first=bucket is buckets[0],
                is_last=bucket is buckets[-1],
            )
            futures.append(self._hook.reduce(begun))
        for bucket, future in zip(buckets, futures, strict=True):
            means = future.wait().split([own.numel() for own in bucket])
            for own, mean in zip(bucket, means, strict=True):
                own.grad = shaped(mean, own) if own in reached else None

    def _put(self, gradients: Mapping[Parameter, Tensor]) -> None:
        for own in self._parameters:
            own.grad = gradients.get(own)

    def _reached(self, gradients: Sequence[Mapping[Parameter, Tensor]]) -> set[Parameter]:
        """The parameters that have a gradient on some worker of the channel."""
        here = [any(own in held for held in gradients) for own in self._parameters]
        return reached_by_any(self._parameters, here, self._hook.channel)


def _buckets(parameters: Sequence[Parameter]) -> Iterator[list[Parameter]]:
    """Parameters of one dtype that follow each other, about 25 MB at a time."""
    for _, same in groupby(parameters, key=lambda own: (own.dtype, own.device)):
        bucket: list[Parameter] = []
        for own in same:
            if bucket and sum(other.nbytes for other in bucket) + own.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(own)
        yield bucket


def _taken_flat(
    parameters: Sequence[Parameter], gradients: MutableMapping[Parameter, Tensor]
) -> Tensor:
    """Gradients after each other, taken out; zeros for those that are not there."""
    found = [gradients.pop(own, None) for own in parameters]
    return torch.cat(
        [
            own.new_zeros(own.numel()) if gradient is None else flattened(gradient, own)
            for own, gradient in zip(parameters, found, strict=True)
        ]
    )
