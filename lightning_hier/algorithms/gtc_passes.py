"""The compiled loops of gradient threshold compression, as :mod:`encoding` calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int64, c_uint32, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from lightning_hier.algorithms.compiled import library_for

# Elements encoded in a call: their words have room in the scratch.
PIECE = 1 << 18


class GTCPasses:
    """The functions of ``gtc_passes.c``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Declare what the functions of ``library`` take."""
        self._encode = library.encode
        self._encode.restype = c_int64
        self._encode.argtypes = [
            *(c_void_p, c_void_p, c_int64, c_float, c_uint32, c_int64, c_void_p),
            POINTER(c_uint32),
        ]
        self._settle = library.settle
        self._settle.restype = None
        self._settle.argtypes = [
            *(c_void_p, c_void_p, c_int64, c_float, c_void_p, c_int64),
            *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64),
        ]

    def encode_(
        self, values: Tensor, residual: Tensor, limit: int, room: Tensor, scale: float
    ) -> tuple[Tensor, int]:
        """As :func:`encoding.encode_`, for magnitudes whose bits exceed ``limit``.

        Args:
            values: see there.
            residual: see there.
            limit: bits of the greatest magnitude that is not sent.
            room: int32, for ``PIECE`` words.
            scale: see there.

        Returns:
            The words, and the greatest bits of a selected magnitude; 0 where none is.

        """
        largest = c_uint32(0)
        found = [room[:0]]
        for start in range(0, values.numel(), PIECE):
            count = self._encode(
                values.data_ptr() + start * values.itemsize,
                residual.data_ptr() + start * values.itemsize,
                min(PIECE, values.numel() - start),
                scale,
                limit,
                start,
                room.data_ptr(),
                ctypes.byref(largest),
            )
            found.append(room[:count].clone())
        return torch.cat(found), largest.value

    def settle_(
        self,
        values: Tensor,
        residual: Tensor,
        words: Tensor,
        threshold: float,
        rows: Sequence[Tensor],
        factors: Sequence[float],
    ) -> None:
        """As :func:`encoding.settle_`, where ``rows`` are the words of all workers."""
        workers = len(rows)
        self._settle(
            values.data_ptr(),
            residual.data_ptr(),
            values.numel(),
            threshold,
            words.data_ptr(),
            words.numel(),
            (c_void_p * workers)(*[row.data_ptr() for row in rows]),
            (c_int64 * workers)(*[row.numel() for row in rows]),
            (c_int64 * workers)(),
            workers,
            (c_float * len(factors))(*factors),
            len(factors),
        )


def gtc_passes_for(values: Tensor, residual: Tensor) -> GTCPasses | None:
    """The loops, where they can and should be used for these tensors; otherwise None."""
    library = library_for(values, residual)
    return None if library is None else _declared(library)


@lru_cache(maxsize=1)
def _declared(library: ctypes.CDLL) -> GTCPasses:
    return GTCPasses(library)
