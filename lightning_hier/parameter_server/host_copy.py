"""Gradients and parameters on their way between a device and host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.flat import FlatView


class HostCopy:
    """Gradients and values of some parameters, in flat buffers on the host: one copy each way.

    Buffers are pinned where the parameters lie on a CUDA device: copies run by DMA then, and all
    pieces are under way before the first is waited for. Torch keeps pinned memory for the next
    buffer when nobody uses it any more.

    Args:
        parameters: in the order of the buffers.
        dtype: of the buffers.

    """

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters)
        self._dtype = dtype
        self._sizes = [parameter.numel() for parameter in parameters]
        self._values = FlatView(self._parameters)
        self._device = next((one.device for one in parameters if one.is_cuda), None)

    def empty(self) -> Tensor:
        """A buffer of its own, with whatever lies there."""
        pinned = self._device is not None
        return torch.empty(sum(self._sizes), dtype=self._dtype, pin_memory=pinned)

    @torch.no_grad()
    def read_gradients(self, out: Tensor) -> list[Tensor | None]:
        """Copy all gradients into a buffer, zeros where there is none.

        Returns:
            The gradients one by one, as views of ``out``.

        """
        found: list[Tensor | None] = []
        for parameter, piece in zip(self._parameters, self._pieces(out), strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad, non_blocking=True)
            found.append(None if parameter.grad is None else piece)
        self._wait()
        return found

    @torch.no_grad()
    def read_values(self, out: Tensor) -> Tensor:
        """Copy all parameters into a buffer, and return it."""
        for parameter, piece in zip(self._parameters, self._pieces(out), strict=True):
            piece.copy_(parameter, non_blocking=True)
        self._wait()
        return out

    @torch.no_grad()
    def write_values(self, flat: Tensor, by_way_of: Tensor | None = None) -> None:
        """Copy a flat tensor of the host into the parameters, in place.

        Args:
            flat: all values.
            by_way_of: a buffer through which they go to a CUDA device; None: one of their own.

        """
        if self._device is None:
            self._values.write_from(flat)
            return
        pinned = (self.empty() if by_way_of is None else by_way_of).copy_(flat)
        for parameter, piece in zip(self._parameters, self._pieces(pinned), strict=True):
            parameter.copy_(piece, non_blocking=True)
        self._wait()

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        pieces = zip(flat.split(self._sizes), self._parameters, strict=True)
        return [piece.view(parameter.shape) for piece, parameter in pieces]

    def _wait(self) -> None:
        if self._device is not None:
            torch.cuda.current_stream(self._device).synchronize()
