"""Codecs of real numbers for a slow network: exact, or quantised to two, one or half a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks
from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.quantisation_groups import INT4_GROUP, QUANTISATION_GROUP


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
        rounded = out.view(torch.bfloat16)
        kernels_for(values, plus).encode_bfloat16_(values, plus, weight, rounded)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        # In chunks, because torch would convert all of `data` to a wider dtype before it adds.
        for chunk, read in chunks(out, data.view(torch.bfloat16)):
            chunk.add_(read) if add else chunk.copy_(read)


class Int8Codec(Codec):
    """One byte per element. A group of consecutive elements shares a scale.

    The scale is the largest magnitude of the group divided by 127, in float32. The error of an
    element is at most half of the scale. The scales precede the elements, so both are aligned.
    """

    def bytes_for(self, numel: int) -> int:
        """One per element and four per group, rounded up to a multiple of 8."""
        return -(-(numel + 4 * (numel // QUANTISATION_GROUP)) // 8) * 8

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        scales, steps = _parts(out, values.numel() // QUANTISATION_GROUP, values.numel())
        encode_ = kernels_for(values, plus).encode_int8_
        encode_(values, plus, weight, scales, steps.view(torch.int8))

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        scales, steps = _parts(data, out.numel() // QUANTISATION_GROUP, out.numel())
        kernels_for(out).decode_int8(out, scales, steps.view(torch.int8), add=add)


class Int4Codec(Codec):
    """Half a byte per element, in whole steps from -7 to 7. A group of elements shares a scale.

    The scale is the largest magnitude of the group divided by 7, in float32. The error of an
    element is at most half of the scale. A group has ``INT4_GROUP`` elements: with so few steps,
    the largest element of a longer group costs more accuracy than the shorter group costs bytes.
    """

    def bytes_for(self, numel: int) -> int:
        """A half per element and four per group, rounded up to a multiple of 8."""
        return -(-(numel // 2 + 4 * (numel // INT4_GROUP)) // 8) * 8

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        scales, packed = _parts(out, values.numel() // INT4_GROUP, values.numel() // 2)
        kernels_for(values, plus).encode_int4_(values, plus, weight, scales, packed)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        scales, packed = _parts(data, out.numel() // INT4_GROUP, out.numel() // 2)
        kernels_for(out).decode_int4(out, scales, packed, add=add)


def _parts(data: Tensor, groups: int, length: int) -> tuple[Tensor, Tensor]:
    """Views of the scales (float32) and of the bytes of the elements in the encoded bytes."""
    # Scales first, because float32 must be aligned and bytes need not be.
    end = 4 * groups
    return data[:end].view(torch.float32), data[end : end + length]
