"""DiLoCo and Streaming DiLoCo of a stack of models, written from the papers' equations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from examples.language.stacked.group_mean import GroupMean
from examples.language.stacked.settings import Settings


class OuterUpdate:
    """Outer SGD with Nesterov momentum, fragment by fragment, at once or with a delay.

    Args:
        settings: of the run.
        start: weights (P,) from which the first block starts.
        sizes: elements of each parameter, in the order of the weights.

    Attributes:
        synchronised: synchronisations of whole models so far.

    """

    def __init__(self, settings: Settings, start: Tensor, sizes: Sequence[int]) -> None:
        self._delay = settings.overlap
        self._parts = [
            _Part(settings, start[place], place) for place in _places(sizes, settings.fragments)
        ]
        self._numel = start.numel()
        self.synchronised = 0.0

    @property
    def model(self) -> Tensor:
        """W, the global model (P,), without what is in flight."""
        return torch.cat([part.model for part in self._parts])

    def after_step(self, weights: Tensor, step: int, block_size: int) -> None:
        """Send and apply what is due after a step, in place in the local models (N, P).

        Args:
            weights: of the workers.
            step: in the block, counted from 1.
            block_size: H.

        """
        for number, part in enumerate(self._parts):
            own = weights[:, part.place]
            part.pending = True
            end = block_size * (number + 1) // len(self._parts)
            # A send in the block before is at a step of 0 or less.
            sends = step == (end - self._delay - 1) % block_size + 1
            if step == end and self._delay:
                part.apply(own)
            if sends:
                part.send(own)
                self.synchronised += own.shape[1] / self._numel
            if step == end and not self._delay:
                part.apply(own)

    def finish(self, weights: Tensor) -> None:
        """Apply what is in flight, and what has not been sent."""
        for part in self._parts:
            if part.finish(weights[:, part.place]):
                self.synchronised += len(part.model) / self._numel


class _Part:
    """A fragment: W, its momentum, and what its local updates count from."""

    def __init__(self, settings: Settings, start: Tensor, place: slice) -> None:
        self.place = place
        self.model = start.clone()
        self.pending = False
        self._momentum = torch.zeros_like(start)
        self._begun = start.repeat(settings.models, 1)
        self._in_flight: Tensor | None = None
        # Without a delay no steps are made meanwhile, and the local models are replaced.
        self._merge = settings.merge if settings.overlap else 0.0
        self._nu, self._mu = settings.outer_lr, settings.mu
        self._mean = GroupMean(settings, start)

    def send(self, own: Tensor) -> None:
        """Put the mean of the local updates in flight."""
        self._in_flight, self.pending = self._mean(own - self._begun), False
        if self._merge == "progress":
            self._begun = own.clone()

    def apply(self, own: Tensor) -> None:
        """Take the outer step with what is in flight, and merge it with the local models."""
        if self._in_flight is None:
            return
        self._step(self._in_flight)
        self._in_flight = None
        if self._merge == "progress":
            own.copy_(self.model + (own - self._begun))
        else:  # streaming_diloco eq. 3
            own.copy_(self._merge * own + (1.0 - self._merge) * self.model)
            self.pending = self.pending and self._merge > 0.0
        self._begun = self.model.expand_as(own)

    def finish(self, own: Tensor) -> bool:
        """Bring W up to date at the end of a run. Returns whether a last update was sent."""
        self.apply(own)
        if self.pending:
            self._step(self._mean(own - self._begun))
        return self.pending

    def _step(self, mean: Tensor) -> None:
        """DiLoCo, algorithm 1, with minus the outer gradient."""
        self._momentum = self._mu * self._momentum + mean
        self.model = self.model + self._nu * (mean + self._mu * self._momentum)


def _places(sizes: Sequence[int], fragments: int) -> Iterator[slice]:
    """Ranges of the fragments: a parameter is in the one in which its middle lies."""
    start = before = 0
    number = 0
    for size in sizes:
        belongs_to = int(fragments * (before + size / 2) / sum(sizes))
        while number < belongs_to:
            yield slice(start, before)
            start, number = before, number + 1
        before += size
    yield slice(start, before)
