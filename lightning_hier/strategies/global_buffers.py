"""Buffers of the global model, for strategies in which every rank has its own buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.local_values import SavedTensors
from lightning_hier.comm.broadcast import is_averaged, is_direction
from lightning_hier.parameter_server.live_collectives import LiveCollectives


class GlobalBuffers:
    """Swaps in the mean of real and complex buffers, and the integers of the lowest live rank.

    Args:
        module: module whose buffers to change, in place.
        collectives: collectives of the live ranks.

    """

    def __init__(self, module: Module, collectives: LiveCollectives) -> None:
        self._module = module
        self._collectives = collectives
        self._own = SavedTensors()

    @torch.no_grad()
    def swap_in(self) -> None:
        """Save this rank's values and write the global ones. All live ranks must call it.

        All buffers are sent together as bytes, whatever their dtypes.
        """
        names = {buffer: name for name, buffer in self._module.named_buffers()}
        buffers = list(names)
        if not buffers:
            return
        with self._own.overwriting(buffers, watch=True):
            self._write_global(buffers, names)

    def _write_global(self, buffers: Sequence[Tensor], names: Mapping[Tensor, str]) -> None:
        raw = torch.cat([buffer.cpu().reshape(-1).view(torch.uint8) for buffer in buffers])
        sizes = [buffer.nbytes for buffer in buffers]
        by_rank = [sent.split(sizes) for sent in self._collectives.gather(raw)]
        for buffer, *pieces in zip(buffers, *by_rank, strict=True):
            # Clones, because a view at an arbitrary byte would not be aligned.
            values = [piece.clone().view(buffer.dtype).view(buffer.shape) for piece in pieces]
            # Integers have no mean, and the mean of unit vectors is shorter (spectral_norm).
            if is_averaged(buffer) and not is_direction(names[buffer], values[0]):
                # A sum of many ranks in half precision could overflow. Complex values stay complex.
                wide = torch.promote_types(buffer.dtype, torch.float64)
                buffer.copy_(torch.stack([value.to(wide) for value in values]).mean(0))
            else:
                buffer.copy_(values[0])

    @torch.no_grad()
    def swap_back(self) -> None:
        """Restore this rank's values, except in buffers that a hook has written."""
        self._own.keep(self._own.written())
        self._own.restore()

    def keep(self) -> None:
        """Discard this rank's values at the end of training."""
        self._own.forget()
