"""Copies of gradients and parameters between a device and host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


class HostCopy:
    """Gradients and values of some parameters, in flat buffers on the host: one copy each way.

    Buffers are pinned if the parameters are on a CUDA device. Copies then run by DMA, and all are
    started before the first one is awaited. torch reuses pinned memory of freed buffers.

    Args:
        parameters: parameters in the order of the buffers.
        dtype: dtype of the buffers.

    """

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters)
        self._dtype = dtype
        self._sizes = [parameter.numel() for parameter in parameters]
        self._device = next((p.device for p in parameters if p.is_cuda), None)

    def empty(self) -> Tensor:
        """A new, uninitialised buffer."""
        pinned = self._device is not None
        return torch.empty(sum(self._sizes), dtype=self._dtype, pin_memory=pinned)

    @torch.no_grad()
    def read_gradients(self, out: Tensor) -> list[Tensor | None]:
        """Copy all gradients into a buffer. Parameters without a gradient get zeros.

        Returns:
            The individual gradients, as views of ``out``.

        """
        gradients: list[Tensor | None] = []
        for parameter, flat in zip(self._parameters, out.split(self._sizes), strict=True):
            piece = flat.view(parameter.shape)
            if parameter.grad is None:
                # Buffers are not initialised, and servers add whole buffers.
                piece.zero_()
            else:
                piece.copy_(parameter.grad, non_blocking=self._device is not None)
            gradients.append(None if parameter.grad is None else piece)
        self._wait()
        return gradients

    @torch.no_grad()
    def read_values(self) -> Tensor:
        """A copy of all parameters, in a new buffer."""
        out = self.empty()
        for parameter, piece in zip(self._parameters, out.split(self._sizes), strict=True):
            piece.view(parameter.shape).copy_(parameter, non_blocking=self._device is not None)
        self._wait()
        return out

    @torch.no_grad()
    def write_values(self, flat: Tensor, by_way_of: Tensor | None = None) -> None:
        """Copy a flat tensor of the host into the parameters, in place.

        Args:
            flat: all values.
            by_way_of: staging buffer for a CUDA device. None: a new one is created.

        """
        if self._device is not None:
            flat = (self.empty() if by_way_of is None else by_way_of).copy_(flat)
        for parameter, piece in zip(self._parameters, flat.split(self._sizes), strict=True):
            parameter.copy_(piece.view(parameter.shape), non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        # The copies are only queued on the stream, and the host may read or reuse the buffer next.
        if self._device is not None:
            torch.cuda.current_stream(self._device).synchronize()
