"""Gradients of the warm-up for parameters that other groups alone have used."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_bucket import GradientBucket
from lightning_hier.comm.gradients.memory_order import shaped
from lightning_hier.comm.gradients.reached import reached_by_any


class UsedElsewhere:
    """Writes mean gradients where DDP leaves them out.

    During the warm-up gradients are averaged over the world. But DDP asks the ranks of its own
    group which parameters were used, and does not write the gradients of the others: groups that
    use different parameters would take different steps.

    Args:
        channel: the ranks over which gradients are averaged.

    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._means: list[tuple[Parameter, Tensor, bool]] = []

    def follow(self, bucket: GradientBucket) -> None:
        """Note a bucket of DDP's that is about to become the mean, in place.

        With the last one of a backward pass, a collective of the channel at the end of that pass.
        """
        if bucket.is_first:
            self._means.clear()
        pieces = bucket.pieces(bucket.buffers[0])
        self._means += [
            (own, piece, own not in bucket.absent[0])
            for own, piece in zip(bucket.parameters, pieces, strict=True)
        ]
        if bucket.is_last:
            # DDP is about to queue its own last act of the pass, and this comes after that.
            queue = Variable._execution_engine.queue_callback
            queue(lambda: queue(self._write))

    @torch.no_grad()
    def _write(self) -> None:
        parameters = [own for own, _, _ in self._means]
        used = reached_by_any(parameters, [here for _, _, here in self._means], self._channel)
        for own, piece, here in self._means:
            if here or own not in used:
                continue
            mean = shaped(piece, own)
            if own.grad is None:
                own.grad = mean.clone()
            else:
                own.grad.copy_(mean)
        self._means.clear()
