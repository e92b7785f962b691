"""Gradients of virtual workers that train one model on one rank, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.reducers import GradientBucket, Reducer
from lightning_hier.comm.profiling import profiler_range

# As in DDP: large enough to hide the overhead of a collective.
_BUCKET_BYTES = 25 * 1024**2


class WorkerGradients:
    """Stores the gradients of each worker until all are computed, then reduces them.

    DDP's reducer expects one backward pass in a step, so these gradients are reduced in separate
    buckets after the backward passes.

    Args:
        parameters: trainable parameters.
        reducer: averages the buckets.
        reached: records the order of the gradients.
        before: predecessor for fewer parameters, whose step is continued.

    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        reducer: Reducer,
        reached: ReachedParameters,
        before: WorkerGradients | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._reducer = reducer
        self._reached = reached
        self._saved: dict[int, dict[Parameter, Tensor]] = {} if before is None else before._saved

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Load the gradients of a worker into ``.grad``, and save them afterwards."""
        self._put(self._saved.pop(worker, {}))
        try:
            yield
        finally:
            grads = {parameter: parameter.grad for parameter in self._parameters}
            self._saved[worker] = {p: grad for p, grad in grads.items() if grad is not None}
            # None, so that the next worker does not accumulate into these tensors.
            self._put({})

    def reduce(self, workers: Sequence[int]) -> None:
        """Set ``.grad`` to the mean over these workers and the workers of the other ranks.

        A parameter without a gradient on any worker gets None. A collective of the channel of the
        reducer; all ranks must pass the same number of workers.
        """
        gradients = [self._saved.pop(worker) for worker in workers]
        # Before the buckets, which take the gradients out of the mappings.
        reached = self._reached_by_any(gradients)
        buckets = list(_buckets(self._parameters))
        futures = []
        for bucket in buckets:
            absent = [set(bucket) - by_parameter.keys() for by_parameter in gradients]
            flat_gradients = GradientBucket(
                bucket,
                [_taken_flat(bucket, by_parameter) for by_parameter in gradients],
                absent,
                workers,
                is_first=bucket is buckets[0],
                is_last=bucket is buckets[-1],
            )
            with profiler_range("hier/gradients/exchange"):
                futures.append(self._reducer.reduce(flat_gradients))
        self._reached.end_step()
        for bucket, future in zip(buckets, futures, strict=True):
            # Not before all buckets are started, so that their collectives overlap.
            means = future.wait().split([parameter.numel() for parameter in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad = shaped(mean, parameter) if parameter in reached else None

    def _put(self, gradients: Mapping[Parameter, Tensor]) -> None:
        for parameter in self._parameters:
            parameter.grad = gradients.get(parameter)

    def _reached_by_any(self, gradients: Sequence[Mapping[Parameter, Tensor]]) -> set[Parameter]:
        """Parameters that have a gradient on any worker of the channel."""
        here = [any(p in of_worker for of_worker in gradients) for p in self._parameters]
        if self._reducer.channel.size > 1 and self._parameters:
            counts = torch.tensor(here, dtype=torch.int32, device=self._parameters[0].device)
            self._reducer.channel.all_reduce_(counts, "gradient_counts").wait()
            here = (counts > 0).tolist()
        return {p for p, reached in zip(self._parameters, here, strict=True) if reached}


def _buckets(parameters: Sequence[Parameter]) -> Iterator[list[Parameter]]:
    """Consecutive parameters of one dtype and device, about 25 MB at a time."""
    # In the order of the module, not of the gradients, so it is the same on all ranks and after a
    # resume.
    for _, same in groupby(parameters, key=lambda parameter: (parameter.dtype, parameter.device)):
        bucket: list[Parameter] = []
        for parameter in same:
            if bucket and sum(other.nbytes for other in bucket) + parameter.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(parameter)
        yield bucket


def _taken_flat(
    parameters: Sequence[Parameter], gradients: MutableMapping[Parameter, Tensor]
) -> Tensor:
    """Concatenate gradients and remove them from the mapping. Missing ones are zeros."""
    # Removed, so that a step never holds all gradients of all workers twice.
    taken = [gradients.pop(parameter, None) for parameter in parameters]
    return torch.cat(
        [
            parameter.new_zeros(parameter.numel())
            if gradient is None
            else flattened(gradient, parameter)
            for parameter, gradient in zip(parameters, taken, strict=True)
        ]
    )


def flattened(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The elements of a gradient in the order of a bucket; a copy only if its strides differ."""
    return gradient.permute(_dimensions(parameter)).reshape(-1)


def shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view of a flat gradient with the shape and the strides of the parameter."""
    order = _dimensions(parameter)
    places = [order.index(dimension) for dimension in range(parameter.dim())]
    return flat.view([parameter.shape[dimension] for dimension in order]).permute(places)


def _dimensions(parameter: Tensor) -> list[int]:
    """Dimensions in descending order of stride, as DDP orders the elements in its buckets.

    Residuals are flat, so a run that resumes with other virtual workers needs the same order.
    """
    dimensions = list(range(parameter.dim()))
    order = sorted(dimensions, key=parameter.stride, reverse=True)
    # If elements overlap or have gaps, DDP uses the order of their indices.
    return order if parameter.permute(order).is_contiguous() else dimensions
