"""The buffers of the global model, where every rank trains with its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.parameter_server.collectives import LiveCollectives


class GlobalBuffers:
    """Shows the mean of floating-point buffers (BatchNorm), and others as the lowest rank has them.

    Args:
        module: whose buffers to change, in place.
        collectives: of the ranks that are there.

    """

    def __init__(self, module: Module, collectives: LiveCollectives) -> None:
        self._module = module
        self._collectives = collectives
        self._own: list[Tensor] = []

    @torch.no_grad()
    def show(self) -> None:
        """Write the global ones, and put this rank's aside. All ranks that are there must call it.

        They travel as float64, which holds floats and whole numbers up to 2^53 exactly.
        """
        buffers = list(self._module.buffers())
        if not buffers:
            return
        self._own = [buffer.clone() for buffer in buffers]
        flat = torch.cat([buffer.reshape(-1).double().cpu() for buffer in buffers])
        everybody = torch.stack(self._collectives.gather(flat))
        mean, first = everybody.mean(0), everybody[0]
        sizes = [buffer.numel() for buffer in buffers]
        parts = zip(buffers, mean.split(sizes), first.split(sizes), strict=True)
        for buffer, averaged, lowest in parts:
            source = averaged if buffer.is_floating_point() else lowest
            buffer.copy_(source.view_as(buffer))

    @torch.no_grad()
    def hide(self) -> None:
        """Give this rank its own back."""
        for buffer, own in zip(self._module.buffers(), self._own, strict=False):
            buffer.copy_(own)
        self._own = []

    def keep(self) -> None:
        """Forget this rank's own: training has ended."""
        self._own = []
