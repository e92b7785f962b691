"""Gradients of some parameters that are averaged together."""

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
    """Flat gradients of some parameters, of each worker of this rank.

    Attributes:
        parameters: in the order in which their gradients follow each other.
        buffers: one for each worker. The first becomes the mean; the others are overwritten.
        absent: for each worker, the parameters without a gradient there.
        workers: their numbers among those of this rank.
        is_first: whether it is the first bucket of a step.
        is_last: whether it is the last.
        of_ddp: DDP's own bucket, which hooks of users get; None for virtual workers.

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
        """Bucket of a rank with one worker.

        Args:
            bucket: of DDP.
            reached: parameters with a gradient in this step; None if all have one. DDP does not
                write back the gradient of a parameter that no rank used, so nothing may be sent
                for it.

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
