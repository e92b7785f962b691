"""Codecs of real numbers for a slow network: exact, or quantised to two, one or half a byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks
from lightning_hier.algorithms.kernels.native import loops_for

# The scales add 0.8% to the bytes.
QUANTISATION_GROUP = 512
"""Elements that share a float32 scale in int8. Tensors consist of whole groups."""

# At equal bits, the least error of 32 to 512, for normal and heavier tails (docs/algorithms.md).
INT4_GROUP = 128
"""Elements that share a float32 scale in int4, a divisor of ``QUANTISATION_GROUP``."""

# Half a byte stores a step from -7 to 7 plus this.
_INT4_ZERO = 8

# The product of the largest step and a rounded scale could be above the largest float32.
_LARGEST_PRODUCT = 0.999999 * torch.finfo(torch.float32).max


class Codec:
    """Encodes real numbers as bytes and decodes them.

    Values are 1-D, in float32 or float64. Their number is a multiple of ``QUANTISATION_GROUP``.
    Finite values are decoded as finite ones: what is beyond the range of the code is part of the
    error.
    """

    def bytes_for(self, numel: int) -> int:
        """Number of bytes for ``numel`` elements, a multiple of 8.

        Consecutive rows of this length in a buffer are therefore aligned for every dtype.
        """
        raise NotImplementedError

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """Write ``values + weight * plus`` into ``out`` and keep the quantisation error.

        Args:
            values: overwritten with this sum minus the values that :meth:`decode` returns.
            out: uint8, of the length that :meth:`bytes_for` returns, at an address divisible by 8.
            plus: 1-D, not longer than ``values``. Added to the first elements.
            weight: factor of ``plus``.

        """
        raise NotImplementedError

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Write the decoded elements to ``out``, or ``add`` them to it, in place."""
        raise NotImplementedError


class ExactCodec(Codec):
    """Elements as they are, in one dtype.

    Args:
        dtype: dtype of all encoded elements.

    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def bytes_for(self, numel: int) -> int:
        """Bytes of ``numel`` elements of the dtype, rounded up to a multiple of 8."""
        return -(-self._dtype.itemsize * numel // 8) * 8

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        if plus is not None:
            values[: plus.numel()].add_(plus, alpha=weight)
        sent = out.view(self._dtype)[: values.numel()].copy_(values)
        # Zeros, unless the dtype is shorter than that of the values.
        values.sub_(sent)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        read = data.view(self._dtype)[: out.numel()]
        out.add_(read) if add else out.copy_(read)


class BFloat16Codec(Codec):
    """Two bytes per element: the nearest bfloat16, with a relative error of at most 2^-9."""

    def bytes_for(self, numel: int) -> int:
        """Two per element."""
        return 2 * numel

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        if loops := loops_for(values, plus):
            loops.encode_bfloat16(*_summed(values, plus, weight), out.data_ptr())
            return
        for chunk, start in _summed_chunks(values, plus, weight):
            rounded = out.view(torch.bfloat16)[start : start + chunk.numel()].copy_(chunk)
            # The bits of the largest finite number are those of inf minus 1.
            too_large = rounded.isinf().logical_and_(chunk.isfinite())
            rounded.view(torch.int16).sub_(too_large.to(torch.int16))
            chunk.sub_(rounded)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        # In chunks, because torch would convert all of `data` to a wider dtype before it adds.
        for chunk, read in chunks(out, data.view(torch.bfloat16)):
            chunk.add_(read) if add else chunk.copy_(read)


class QuantisedCodec(Codec):
    """A byte or half a byte per element, in whole steps of a scale that a group of them shares.

    The scale is the largest magnitude of the group divided by the largest step, in float32. The
    error of an element is at most half of the scale. The scales precede the elements, so both are
    aligned. In half a byte, steps are from -7 to 7. With so few, the largest element of a longer
    group costs more accuracy than the shorter group costs bytes.

    Byte i of a group of half bytes holds element i in its lower half and element i + 64 in its
    upper half, so that both halves are contiguous.

    Args:
        bits: 8 with groups of ``QUANTISATION_GROUP`` elements, or 4 with ``INT4_GROUP``.

    """

    def __init__(self, bits: Literal[8, 4]) -> None:
        self._bits = bits
        self._group, self._most = (QUANTISATION_GROUP, 127.0) if bits == 8 else (INT4_GROUP, 7.0)

    def bytes_for(self, numel: int) -> int:
        """Bytes of the steps and four per group, rounded up to a multiple of 8."""
        return -(-(numel * self._bits // 8 + 4 * (numel // self._group)) // 8) * 8

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        scales, steps = self._parts(out, values.numel())
        if loops := loops_for(values, plus):
            encode = loops.encode_int8 if self._bits == 8 else loops.encode_int4
            encode(*_summed(values, plus, weight), scales.data_ptr(), steps.data_ptr())
            return
        for rows, scale, stored in _groups(values, scales, steps, plus, weight):
            rounded, wide = _quantise(rows, scale, self._most)
            if self._bits == 8:
                stored.copy_(rounded)
            else:
                lower, upper = rounded.chunk(2, dim=1)
                # 16 * (upper + _INT4_ZERO) + lower + _INT4_ZERO
                stored.copy_((upper * 16).add_(lower).add_(17 * _INT4_ZERO))
            # The same product as in decode, so that the error is exact.
            rows.sub_(rounded.mul_(wide))

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        scales, steps = self._parts(data, out.numel())
        if loops := loops_for(out):
            decode = loops.decode_int8 if self._bits == 8 else loops.decode_int4
            decode(*_place(out), scales.data_ptr(), steps.data_ptr(), add)
            return
        for rows, scale, stored in _groups(out, scales, steps):
            if self._bits == 8:
                values = stored.to(out.dtype)
            else:
                values = torch.cat([stored & 15, stored >> 4], dim=1).to(out.dtype).sub_(_INT4_ZERO)
            values.mul_(scale.to(out.dtype).unsqueeze(1))
            rows.add_(values) if add else rows.copy_(values)

    def _parts(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of the scales (float32) and of the steps in the encoded bytes."""
        # Scales first, because float32 must be aligned and bytes need not be.
        end = 4 * (numel // self._group)
        steps = data[end : end + numel * self._bits // 8]
        return data[:end].view(torch.float32), steps.view(torch.int8) if self._bits == 8 else steps


def _summed_chunks(
    values: Tensor, plus: Tensor | None, weight: float
) -> Iterator[tuple[Tensor, int]]:
    """Chunks of ``values`` and their positions, after ``weight * plus`` has been added."""
    start = 0
    for (chunk,) in chunks(values):
        if plus is not None:
            summand = plus[start : start + chunk.numel()]
            chunk[: summand.numel()].add_(summand, alpha=weight)
        yield chunk, start
        start += chunk.numel()


def _groups(
    values: Tensor,
    scales: Tensor,
    encoded: Tensor,
    plus: Tensor | None = None,
    weight: float = 1.0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of ``values + weight * plus``, a quantisation group each; their scales and codes."""
    length = values.numel() // max(len(scales), 1)
    for chunk, start in _summed_chunks(values, plus, weight):
        rows = chunk.view(-1, length)
        place = slice(start // length, start // length + len(rows))
        yield rows, scales[place], encoded.view(len(scales), -1)[place]


def _quantise(rows: Tensor, scale: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Set the scale of each row. Returns the rows in whole steps, and the scales as a column."""
    rounded = torch.abs(rows)
    most = rounded.amax(dim=1)
    # Finite groups have finite products. inf and NaN must not be hidden.
    limited = most.div(largest).clamp_(max=_LARGEST_PRODUCT / largest)
    scale.copy_(torch.where(most.isfinite(), limited, most))
    # Scale 0 for groups of zeros, and for scales below the normal range of float32, whose
    # reciprocal may overflow. By a product, in which NaN stays NaN: it must not be hidden.
    scale.mul_(scale >= torch.finfo(torch.float32).tiny)
    wide = scale.to(rows.dtype).unsqueeze(1)
    torch.mul(rows, wide.reciprocal().nan_to_num_(posinf=0.0), out=rounded).round_()
    # Longer dtypes have values beyond the largest product. What is above it stays as error.
    rounded.clamp_(-largest, largest)
    return rounded, wide


def _place(values: Tensor) -> tuple[int, int]:
    """Address and length, for a C loop."""
    return values.data_ptr(), values.numel()


def _summed(values: Tensor, plus: Tensor | None, weight: float) -> tuple[int | None | float, ...]:
    """``values + weight * plus``, for a C loop."""
    return (*_place(values), *(_place(plus) if plus is not None else (None, 0)), weight)
