"""Blocks between a worker's device and the host: one flat copy each way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All elements, flat, in memory of its own that the transport may keep.

    From a GPU they come through pinned memory, which torch keeps for the next time when the
    transport has let go of it.
    """
    flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])
    if not flat.is_cuda:
        return flat
    host = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    torch.cuda.current_stream(flat.device).synchronize()
    return host


def write_(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat block of the host into the tensors, in place."""
    device = tensors[0].device
    if device.type == "cuda":
        pinned = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat)
        flat = pinned.to(device, non_blocking=True)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    targets = [tensor.detach() for tensor in tensors]
    shaped = [piece.view(target.shape) for piece, target in zip(pieces, targets, strict=True)]
    torch._foreach_copy_(targets, shaped)
    if device.type == "cuda":
        # Before the pinned memory is free for others.
        torch.cuda.current_stream(device).synchronize()
