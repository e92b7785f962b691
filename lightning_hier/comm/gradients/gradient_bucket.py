"""The gradients of some parameters on their way to their mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Parameter

from lightning_hier.comm.gradients.reached import ReachedParameters


@dataclass(frozen=True)
class GradientBucket:
    """Gradients of some parameters, flat, of each worker that this rank plays with one model.

    Attributes:
        parameters: in the order in which their gradients follow each other.
        buffers: one for each worker. The first becomes the mean; the others are used up.
        absent: for each worker, which of the parameters have no gradient there.
        workers: their numbers among those of this rank.
        is_first: whether it is the first bucket of a step.
        is_last: whether it is the last.
        of_ddp: the same as DDP hands it over, where it does: what hooks of users get.

    """

    parameters: Sequence[Parameter]
    buffers: Sequence[Tensor]
    absent: Sequence[Collection[Parameter]]
    workers: Sequence[int] = (0,)
    is_first: bool = True
    is_last: bool = True
    of_ddp: GradBucket | None = None

    @classmethod
    def from_ddp(cls, bucket: GradBucket, reached: ReachedParameters | None) -> GradientBucket:
        """Of a rank that plays one worker.

        Args:
            bucket: as DDP hands it over.
            reached: where parameters may be without gradient in a step: those that have some. DDP
                does not write back the gradient of a parameter that no rank used, so nothing may be
                sent for it. None: all have.

        """
        parameters = cast(list[Parameter], bucket.parameters())
        absent = [] if reached is None else [own for own in parameters if own not in reached]
        return cls(
            parameters,
            [bucket.buffer()],
            [set(absent)],
            is_first=bucket.index() == 0,
            is_last=bucket.is_last(),
            of_ddp=bucket,
        )

    def pieces(self, buffer: Tensor) -> list[Tensor]:
        """The gradient of each parameter in one of the buffers, flat."""
        return list(buffer.split([own.numel() for own in self.parameters]))
