"""The CPU passes over large float32 tensors, compiled where the host has a C compiler.

Between two operations of torch or NumPy a chunk goes to the second-level cache and back; one loop
keeps it in registers, and takes half the time. Nothing depends on it: without a compiler, for other
dtypes and for small tensors :mod:`encoding` does the same in torch and NumPy, to the same bits.

The file is compiled once in a process, when the first large tensor is encoded, in a folder of its
own that is deleted at once: nothing is kept that another user, or another kind of processor that
shares the home folder, could come by. ``LIGHTNING_HIER_COMPILE=0`` in the environment forbids it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int64, c_uint32, c_void_p
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

# Below, calling costs more than the loop saves, and a small model does not wait for a compiler.
SMALLEST = 1 << 16

# Elements encoded in a call: their words have room in the scratch.
PIECE = 1 << 18

_SOURCE = Path(__file__).with_name("passes.c")
_OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
_LIMIT_S = 60.0


class Passes:
    """The functions of ``passes.c``."""

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


def passes_for(values: Tensor) -> Passes | None:
    """The compiled passes, where they can and should be used for this tensor; otherwise None."""
    fits = values.device.type == "cpu" and values.dtype == torch.float32
    return compiled_passes() if fits and values.numel() >= SMALLEST else None


@lru_cache(maxsize=1)
def compiled_passes() -> Passes | None:
    """Compile and load; None where that is forbidden or fails, for whatever reason."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("LIGHTNING_HIER_COMPILE") == "0" or compiler is None:
        return None
    if sys.byteorder != "little" or os.name != "posix":
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="lightning_hier-") as folder:
            target = Path(folder) / "passes.so"
            subprocess.run(
                [compiler, *_OPTIONS, str(_SOURCE), "-o", str(target)],
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
            )
            return Passes(ctypes.CDLL(str(target)))
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
