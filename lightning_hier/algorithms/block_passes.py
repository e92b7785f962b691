"""The compiled loops of a block synchronisation, as :mod:`block_momentum` and others call them."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import lru_cache

from torch import Tensor

from lightning_hier.algorithms.compiled import library_for


class BlockPasses:
    """The functions of ``block_passes.c``. Tensors are 1-D, contiguous and float32."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Declare what the functions of ``library`` take."""
        library.sum_of_squares.restype = c_double
        library.sum_of_squares.argtypes = [c_void_p, c_int64]
        library.leave_out.restype = c_double
        library.leave_out.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_float]
        for function in (library.advance, library.advance_by):
            function.restype = None
            function.argtypes = [
                *(c_void_p, c_void_p, c_void_p, c_int64, c_float, c_float, c_void_p, c_int, c_int)
            ]
        library.encode_int8.restype = None
        library.encode_int8.argtypes = [
            *(c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_void_p)
        ]
        library.decode_int8.restype = None
        library.decode_int8.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, c_int]
        library.encode_bfloat16.restype = None
        library.encode_bfloat16.argtypes = [
            *(c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p)
        ]
        self._library = library

    def sum_of_squares(self, values: Tensor) -> float:
        """As :func:`sums.sum_of_squares`, to the last digits."""
        return float(self._library.sum_of_squares(values.data_ptr(), values.numel()))

    def leave_out_(
        self, values: Tensor, global_model: Tensor, update: Tensor | None, eta: float
    ) -> float:
        """As ``BlockFilter.leave_out_start_``; without ``update`` W is the start model."""
        pointers = _pointers(values, global_model, update)
        return float(self._library.leave_out(*pointers, values.numel(), eta))

    def advance_(
        self,
        mean: Tensor,
        global_model: Tensor,
        update: Tensor | None,
        *,
        eta: float,
        zeta: float,
        ahead: bool,
        adds_old_update: bool,
    ) -> tuple[float, float]:
        """As ``BlockFilter.advance_``; ``ahead`` says that W_g is W + eta * Delta."""
        squares = (c_double * 2)()
        self._library.advance(
            *_pointers(mean, global_model, update),
            *(mean.numel(), eta, zeta, squares, ahead, adds_old_update),
        )
        return squares[0], squares[1]

    def advance_by_(
        self,
        way: Tensor,
        global_model: Tensor,
        update: Tensor | None,
        *,
        eta: float,
        zeta: float,
        ahead: bool,
        from_start: bool,
    ) -> tuple[float, float]:
        """As ``BlockFilter.advance_by_``; ``from_start`` adds Delta to W_g, which is ahead."""
        squares = (c_double * 2)()
        self._library.advance_by(
            *_pointers(way, global_model, update),
            *(way.numel(), eta, zeta, squares, ahead, from_start),
        )
        return squares[0], squares[1]

    def encode_int8_(
        self, values: Tensor, plus: Tensor | None, weight: float, scales: Tensor, steps: Tensor
    ) -> None:
        """As ``Int8Codec.encode_``, into ``scales`` and ``steps``."""
        self._library.encode_int8(
            *(values.data_ptr(), values.numel(), *_summand(plus), weight),
            *(scales.data_ptr(), steps.data_ptr()),
        )

    def decode_int8(self, out: Tensor, scales: Tensor, steps: Tensor, *, add: bool) -> None:
        """As ``Int8Codec.decode``."""
        self._library.decode_int8(
            out.data_ptr(), out.numel(), scales.data_ptr(), steps.data_ptr(), add
        )

    def encode_bfloat16_(
        self, values: Tensor, plus: Tensor | None, weight: float, out: Tensor
    ) -> None:
        """As ``BFloat16Codec.encode_``."""
        self._library.encode_bfloat16(
            *(values.data_ptr(), values.numel(), *_summand(plus), weight, out.data_ptr())
        )


def block_passes_for(*tensors: Tensor | None) -> BlockPasses | None:
    """The loops, where they can and should be used for these tensors; otherwise None."""
    library = library_for(*(tensor for tensor in tensors if tensor is not None))
    return None if library is None else _declared(library)


@lru_cache(maxsize=1)
def _declared(library: ctypes.CDLL) -> BlockPasses:
    return BlockPasses(library)


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _summand(plus: Tensor | None) -> tuple[int | None, int]:
    return (None, 0) if plus is None else (plus.data_ptr(), plus.numel())
