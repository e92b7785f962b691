"""The native backend: C loops over float32 tensors on the CPU.

Between two operations of torch, a chunk is written to the second-level cache and read again. A
single loop keeps it in registers and takes between a half and a fifth of the time. The loops are
optional: without a compiler, for other dtypes and for small tensors, the reference gives
bit-identical results.

Each process compiles the sources once, while a fit is set up or for the first large tensor. The
library is loaded from a new directory that is deleted directly afterwards, so that no other user,
and no host with a different processor that shares the home directory, can load it. The environment
variable ``LIGHTNING_HIER_COMPILE=0`` disables compilation.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.reference import BlockCoefficients, TorchKernels

# Elements that one call encodes. This limits the size of the buffer for their words.
PIECE = 1 << 18

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
# Without -ffp-contract=off, the compiler may fuse operations that torch rounds separately.
_OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
_LIMIT_S = 60.0

_TYPES: dict[str, Any] = {
    "d": c_double,
    "f": c_float,
    "i": c_int,
    "l": c_int64,
    "p": c_void_p,
    "v": None,
}
# For each function: type of the result, a colon, types of the arguments. They must be those of the
# C sources: a difference is no error, but corrupts memory.
_SIGNATURES = {
    "encode": "l:pplfflpp",
    "decode": "v:pplfplppplpli",
    "sum_of_squares": "d:pl",
    "subtract_start": "d:ppplf",
    "advance": "v:ppplffiip",
    "advance_by": "v:ppplffiiip",
    "encode_int8": "v:plplfpp",
    "decode_int8": "v:plppi",
    "encode_int4": "v:plplfpp",
    "decode_int4": "v:plppi",
    "encode_bfloat16": "v:plplfp",
    "largest": "v:plllp",
}


# lru_cache alone would let two threads compile at the same time.
_compiling = Lock()


def native_kernels() -> NativeKernels | None:
    """Compile and load the loops at the first call. Another thread's call then waits for them.

    None if compilation is disabled or fails for any reason.
    """
    with _compiling:
        return _compiled()


@lru_cache(maxsize=1)
def _compiled() -> NativeKernels | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("LIGHTNING_HIER_COMPILE") == "0" or compiler is None:
        return None
    # gtc.c finds elements by the position of bytes in a word.
    if sys.byteorder != "little" or os.name != "posix":
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="lightning_hier-") as folder:
            target = Path(folder) / "kernels.so"
            subprocess.run(
                [compiler, *_OPTIONS, *map(str, _SOURCES), "-o", str(target), "-lm"],
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
            )
            # A loaded library stays mapped after its file is deleted.
            return NativeKernels(ctypes.CDLL(str(target)))
    except (OSError, subprocess.SubprocessError):
        return None


class NativeKernels(TorchKernels):
    """Calls the functions of the C sources beside it. Tensors are contiguous and float32."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Declare the argument and result types of the functions of ``library``."""
        self._library = library
        for name, signature in _SIGNATURES.items():
            result, arguments = signature.split(":")
            function = getattr(library, name)
            function.restype = _TYPES[result]
            function.argtypes = [_TYPES[letter] for letter in arguments]

    def encode_(
        self, values: Tensor, residual: Tensor, threshold: float, *, scale: float = 1.0
    ) -> tuple[Tensor, bool]:
        """See :class:`TorchKernels`."""
        finite = c_int(1)
        words = torch.empty(min(PIECE, values.numel()), dtype=torch.int32)
        pieces = [words[:0]]
        for start in range(0, values.numel(), PIECE):
            count = self._library.encode(
                values.data_ptr() + start * values.itemsize,
                residual.data_ptr() + start * values.itemsize,
                min(PIECE, values.numel() - start),
                *(scale, threshold, start, words.data_ptr(), ctypes.byref(finite)),
            )
            # A copy, because the next call overwrites the buffer.
            pieces.append(words[:count].clone())
        return torch.cat(pieces), bool(finite.value)

    def decode_(
        self,
        values: Tensor,
        residual: Tensor,
        sent: Tensor,
        threshold: float,
        rows: Sequence[Tensor],
        factors: Sequence[float],
        *,
        bitmaps: bool = False,
    ) -> None:
        """See :class:`TorchKernels`."""
        workers = len(rows)
        self._library.decode(
            *(values.data_ptr(), residual.data_ptr(), values.numel()),
            *(threshold, sent.data_ptr(), sent.numel()),
            (c_void_p * workers)(*[row.data_ptr() for row in rows]),
            (c_int64 * workers)(*[row.numel() for row in rows]),
            (c_int64 * workers)(),  # zeros: for each row, the next word to add
            workers,
            (c_float * len(factors))(*factors),
            *(len(factors), bitmaps),
        )

    def sum_of_squares(self, values: Tensor) -> float:
        """See :class:`TorchKernels`."""
        return float(self._library.sum_of_squares(values.data_ptr(), values.numel()))

    def subtract_start_(
        self, model: Tensor, global_model: Tensor, update: Tensor | None, eta: float
    ) -> float:
        """See :class:`TorchKernels`."""
        pointers = _pointers(model, global_model, update)
        return float(self._library.subtract_start(*pointers, model.numel(), eta))

    def advance_(
        self, mean: Tensor, global_model: Tensor, update: Tensor | None, by: BlockCoefficients
    ) -> tuple[float, float]:
        """See :class:`TorchKernels`."""
        squares = (c_double * 2)()
        pointers = _pointers(mean, global_model, update)
        # Without `inside`, which only advance_by supports.
        self._library.advance(*pointers, mean.numel(), *by[:4], squares)
        return squares[0], squares[1]

    def advance_by_(
        self, gradient: Tensor, global_model: Tensor, update: Tensor | None, by: BlockCoefficients
    ) -> tuple[float, float]:
        """See :class:`TorchKernels`."""
        squares = (c_double * 2)()
        pointers = _pointers(gradient, global_model, update)
        self._library.advance_by(*pointers, gradient.numel(), *by, squares)
        return squares[0], squares[1]

    def encode_int8_(
        self, values: Tensor, plus: Tensor | None, weight: float, scales: Tensor, out: Tensor
    ) -> None:
        """See :class:`TorchKernels`."""
        self._library.encode_int8(*_summed(values, plus, weight), *_pointers(scales, out))

    def decode_int8(self, out: Tensor, scales: Tensor, steps: Tensor, *, add: bool) -> None:
        """See :class:`TorchKernels`."""
        self._library.decode_int8(out.data_ptr(), out.numel(), *_pointers(scales, steps), add)

    def encode_int4_(
        self, values: Tensor, plus: Tensor | None, weight: float, scales: Tensor, out: Tensor
    ) -> None:
        """See :class:`TorchKernels`."""
        self._library.encode_int4(*_summed(values, plus, weight), *_pointers(scales, out))

    def decode_int4(self, out: Tensor, scales: Tensor, packed: Tensor, *, add: bool) -> None:
        """See :class:`TorchKernels`."""
        self._library.decode_int4(out.data_ptr(), out.numel(), *_pointers(scales, packed), add)

    def largest(self, values: Tensor, length: int, number: int) -> Tensor:
        """See :class:`TorchKernels`."""
        rows = values.numel() // length
        offsets = torch.empty(rows * number, dtype=torch.int16)
        self._library.largest(values.data_ptr(), rows, length, number, offsets.data_ptr())
        return offsets

    def encode_bfloat16_(
        self, values: Tensor, plus: Tensor | None, weight: float, out: Tensor
    ) -> None:
        """See :class:`TorchKernels`."""
        self._library.encode_bfloat16(*_summed(values, plus, weight), out.data_ptr())


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _summed(values: Tensor, plus: Tensor | None, weight: float) -> tuple[Any, ...]:
    """Arguments of ``values + weight * plus``."""
    plus_numel = 0 if plus is None else plus.numel()
    return (values.data_ptr(), values.numel(), *_pointers(plus), plus_numel, weight)
