"""Gradients and parameters on their way between a device and host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.flat import FlatView


class HostCopy:
    """A flat buffer on the host for the gradients and values of one optimizer's parameters.

    It is pinned where parameters lie on a CUDA device: copies run by DMA then, and all pieces are
    under way before the first is waited for.

    Args:
        parameters: in the order of the flat buffer.
        dtype: of the buffer.

    """

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters)
        self._cuda = any(parameter.is_cuda for parameter in parameters)
        sizes = [parameter.numel() for parameter in parameters]
        self._flat = torch.zeros(sum(sizes), dtype=dtype, pin_memory=self._cuda)
        pieces = zip(self._flat.split(sizes), parameters, strict=True)
        self._pieces = [piece.view(parameter.shape) for piece, parameter in pieces]
        self._values = FlatView(self._parameters)

    @torch.no_grad()
    def read_gradients(self) -> tuple[Tensor, list[Tensor | None]]:
        """All gradients as one flat tensor, zeros where there is none, and one by one.

        Both are views of the buffer, valid until the next call of a method.
        """
        found: list[Tensor | None] = []
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad, non_blocking=True)
            found.append(None if parameter.grad is None else piece)
        self._wait()
        return self._flat, found

    @torch.no_grad()
    def write_values(self, weights: Tensor) -> None:
        """Copy ``weights`` (flat, on the host) into the parameters, in place."""
        if not self._cuda:
            self._values.write_from(weights)
            return
        self._flat.copy_(weights)
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            parameter.copy_(piece, non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._parameters[0].device)
