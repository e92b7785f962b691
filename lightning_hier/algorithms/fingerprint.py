"""Fingerprints of tensors, to detect whether any bit has changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

# Elements per chunk. On the CPU, intermediate results stay in the cache.
_PIECE_ON_CPU = 1 << 16
_PIECE_ON_ACCELERATOR = 1 << 20
# Odd factors are invertible modulo 2**64, so a multiplication loses no information.
_FACTOR = -7046029254386353131
_NARROW = {1: torch.uint8, 2: torch.int16}


@torch.no_grad()
def fingerprints(tensors: Sequence[Tensor]) -> list[int]:
    """A sum over the bits of each tensor, weighted by position, modulo 2**64.

    ::

        h <- f * h + sum over i of w_i b_i      for each chunk b of the elements, as integers

    with odd random weights w, the same for all tensors and in all processes. One changed element
    always changes the sum; several cancel each other with a probability of about 2**-32 or less.
    Norms would miss changes of sign and of order. Memory is bounded.

    Args:
        tensors: tensors of any dtype, shape and device. They are not changed.

    """
    scratch: dict[torch.device, Tensor] = {}
    sums = [_fingerprint(tensor.detach(), scratch) for tensor in tensors]
    # One copy from an accelerator instead of one for each tensor.
    return torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []


@torch.no_grad()
def bit_sums(tensors: Sequence[Tensor]) -> list[int]:
    """A sum over the bits of each tensor, in a quarter of the time of :func:`fingerprints`.

    One changed element always changes it, and the order of elements does not: it is for values that
    are computed anew and not moved. Arguments are those of :func:`fingerprints`.
    """
    scratch: dict[torch.device, Tensor] = {}
    sums = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        place = flat.storage_offset() * flat.itemsize
        # A view as words of 8 bytes must begin and end at one.
        if place % 8 or flat.nbytes % 8:
            sums.append(_fingerprint(flat, scratch))
        else:
            sums.append(flat.view(torch.int64).sum())
    return torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []


def _fingerprint(tensor: Tensor, scratch: dict[torch.device, Tensor]) -> Tensor:
    # Elements of 8 bytes and more are read as several of 4.
    bits = tensor.reshape(-1).view(_NARROW.get(tensor.itemsize, torch.int32))
    weights = _weights(bits.device)
    if bits.device not in scratch:
        scratch[bits.device] = torch.empty_like(weights)
    wide = scratch[bits.device]
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), len(weights)):
        part = bits[start : start + len(weights)]
        weighted = wide[: len(part)].copy_(part).mul_(weights[: len(part)])
        # Chunks have the same weights. The factor makes their order count.
        total.mul_(_FACTOR).add_(weighted.sum())
    return total


@cache
def _weights(device: torch.device) -> Tensor:
    length = _PIECE_ON_CPU if device.type == "cpu" else _PIECE_ON_ACCELERATOR
    generator = torch.Generator().manual_seed(1)
    # A cached inference tensor could not be used by later calls outside inference mode.
    with torch.inference_mode(False):
        drawn = torch.randint(-(2**63), 2**63 - 1, (length,), generator=generator)
        return drawn.bitwise_or_(1).to(device)
