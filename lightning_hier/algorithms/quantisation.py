"""Codecs that quantise real numbers for a slow network: two bytes or one for each element."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks
from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.reference import QUANTISATION_GROUP


class Codec:
    """Writes real numbers as bytes and reads them back.

    Values are 1-D, in float32 or float64, and their number is a multiple of ``QUANTISATION_GROUP``.
    """

    def bytes_for(self, numel: int) -> int:
        """Bytes that ``numel`` elements take; a multiple of 8."""
        raise NotImplementedError

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """Write ``values + weight * plus`` into ``out`` and keep the quantisation error.

        Args:
            values: overwritten with that sum minus what :meth:`decode` reads.
            out: uint8, as long as :meth:`bytes_for` returns, at an address that 8 divides.
            plus: 1-D, at most as long as ``values``, and added to the first of them.
            weight: factor of ``plus``.

        """
        raise NotImplementedError

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Read as many elements as ``out`` has into it, or ``add`` them to it, in place."""
        raise NotImplementedError


class BFloat16Codec(Codec):
    """Two bytes an element: rounds to the nearest bfloat16, a relative error of at most 2^-9."""

    def bytes_for(self, numel: int) -> int:
        """Two for each."""
        return 2 * numel

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        rounded = out.view(torch.bfloat16)
        kernels_for(values, plus).encode_bfloat16_(values, plus, weight, rounded)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        # torch widens a whole operand before it adds.
        for chunk, read in chunks(out, data.view(torch.bfloat16)):
            chunk.add_(read) if add else chunk.copy_(read)


class Int8Codec(Codec):
    """One byte an element: a group of neighbours shares a scale, which is their largest / 127.

    The error of an element is at most half of the scale. Scales are float32 and lie first.
    """

    def bytes_for(self, numel: int) -> int:
        """One for each, and a scale for each group; rounded up to a multiple of 8."""
        return -(-(numel + 4 * (numel // QUANTISATION_GROUP)) // 8) * 8

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        kernels_for(values, plus).encode_int8_(values, plus, weight, *_parts(out, values))

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        kernels_for(out).decode_int8(out, *_parts(data, out), add=add)


def _parts(data: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The scales (float32) and the steps (int8) in the bytes of so many values."""
    end = 4 * (values.numel() // QUANTISATION_GROUP)
    steps = data[end:].view(torch.int8)[: values.numel()]
    return data[:end].view(torch.float32), steps
