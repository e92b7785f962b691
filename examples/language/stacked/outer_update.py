"""DiLoCo and Streaming DiLoCo of a stack of models, written from the papers' equations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from examples.language.stacked.group_mean import GroupMean
from examples.language.stacked.settings import Settings


class OuterUpdate:
    """Outer SGD with Nesterov momentum, applied to each fragment with or without a delay.

    Args:
        settings: settings of the run.
        start: weights (P,) at the start of the first block.
        sizes: number of elements of each parameter, in the order of the weights.

    Attributes:
        synchronised: number of synchronisations so far, where a fragment counts by its elements.

    """

    def __init__(self, settings: Settings, start: Tensor, sizes: Sequence[int]) -> None:
        self._delay = settings.overlap
        self._fragments = [
            _Fragment(settings, start[elements], elements)
            for elements in _fragment_ranges(sizes, settings.fragments)
        ]
        self._numel = start.numel()
        self.synchronised = 0.0

    @property
    def model(self) -> Tensor:
        """W, the global model (P,), without updates in flight."""
        return torch.cat([fragment.model for fragment in self._fragments])

    def after_step(self, weights: Tensor, step: int, block_size: int) -> None:
        """Send and apply the updates that are due after a step.

        The local models are changed in place.

        Args:
            weights: weights (N, P) of the local models.
            step: step of the block, counted from 1.
            block_size: H, number of steps of the block.

        """
        for index, fragment in enumerate(self._fragments):
            local = weights[:, fragment.elements]
            fragment.pending = True
            end = block_size * (index + 1) // len(self._fragments)
            # The modulus applies if the update is sent in the block before it is applied.
            sends = step == (end - self._delay - 1) % block_size + 1
            if step == end and self._delay:
                fragment.apply(local)
            if sends:
                fragment.send(local)
                self.synchronised += local.shape[1] / self._numel
            if step == end and not self._delay:
                fragment.apply(local)

    def finish(self, weights: Tensor) -> None:
        """Apply the updates in flight, and send and apply the remaining ones."""
        for fragment in self._fragments:
            if fragment.finish(weights[:, fragment.elements]):
                self.synchronised += len(fragment.model) / self._numel


class _Fragment:
    """A fragment: W, its momentum, and the weights from which local updates are computed."""

    def __init__(self, settings: Settings, start: Tensor, elements: slice) -> None:
        self.elements = elements
        self.model = start.clone()
        self.pending = False
        self._momentum = torch.zeros_like(start)
        self._block_start = start.repeat(settings.models, 1)
        self._in_flight: Tensor | None = None
        # Without a delay, there are no steps to merge: the global model replaces the local ones.
        self._merge = settings.merge if settings.overlap else 0.0
        self._nu, self._mu = settings.outer_lr, settings.mu
        self._mean = GroupMean(settings, start)

    def send(self, local: Tensor) -> None:
        """Compute the mean of the local updates, which is in flight until :meth:`apply`."""
        self._in_flight, self.pending = self._mean(local - self._block_start), False
        if self._merge == "progress":
            self._block_start = local.clone()

    def apply(self, local: Tensor) -> None:
        """Take the outer step with the update in flight, and merge the local models, in place."""
        if self._in_flight is None:
            return
        self._outer_step(self._in_flight)
        self._in_flight = None
        if self._merge == "progress":
            local.copy_(self.model + (local - self._block_start))
        else:  # streaming_diloco eq. 3
            local.copy_(self._merge * local + (1.0 - self._merge) * self.model)
            self.pending = self.pending and self._merge > 0.0
        self._block_start = self.model.expand_as(local)

    def finish(self, local: Tensor) -> bool:
        """Apply all updates at the end of a run. Return whether a last update was sent."""
        self.apply(local)
        if self.pending:
            self._outer_step(self._mean(local - self._block_start))
        return self.pending

    def _outer_step(self, mean: Tensor) -> None:
        """Take the outer step of DiLoCo, algorithm 1. The mean is minus the outer gradient."""
        self._momentum = self._mu * self._momentum + mean
        self.model = self.model + self._nu * (mean + self._mu * self._momentum)


def _fragment_ranges(sizes: Sequence[int], fragments: int) -> Iterator[slice]:
    """Yield the ranges of the fragments. The middle of a parameter determines its fragment."""
    start = stop = 0
    index = 0
    for size in sizes:
        fragment_of_parameter = int(fragments * (stop + size / 2) / sum(sizes))
        while index < fragment_of_parameter:
            yield slice(start, stop)
            start, index = stop, index + 1
        stop += size
    yield slice(start, stop)
