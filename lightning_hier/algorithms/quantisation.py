"""Short forms of real numbers for a slow network: two bytes or one for each element."""

from __future__ import annotations

import torch
from torch import Tensor

# Elements that share a scale: 4 bytes for so many of one byte each.
BLOCK = 512

# Elements coded at a time, a multiple of BLOCK: intermediate values stay in the cache.
_CHUNK = 1 << 16

_LARGEST = 127.0


class Coder:
    """Writes real numbers as bytes and reads them back.

    Values are 1-D, in float32 or float64, and their number is a multiple of ``BLOCK``.
    """

    def bytes_for(self, numel: int) -> int:
        """Bytes that ``numel`` elements take; a multiple of 8."""
        raise NotImplementedError

    def encode_(self, values: Tensor, out: Tensor) -> None:
        """Write ``values`` into ``out`` and keep the error.

        Args:
            values: overwritten with themselves minus what :meth:`decode` will read.
            out: uint8, as long as :meth:`bytes_for` says, at an address that 8 divides.

        """
        for start in range(0, values.numel(), _CHUNK):
            self._encode_chunk_(values[start : start + _CHUNK], start, values.numel(), out)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Read as many elements as ``out`` has into it, or ``add`` them to it, in place."""
        for start in range(0, out.numel(), _CHUNK):
            self._decode_chunk(data, start, out[start : start + _CHUNK], out.numel(), add=add)

    def _encode_chunk_(self, values: Tensor, start: int, total: int, out: Tensor) -> None:
        raise NotImplementedError

    def _decode_chunk(
        self, data: Tensor, start: int, out: Tensor, total: int, *, add: bool
    ) -> None:
        raise NotImplementedError


class BFloat16Coder(Coder):
    """Two bytes an element: rounds to the nearest bfloat16, a relative error of at most 2^-9."""

    def bytes_for(self, numel: int) -> int:
        """Two for each."""
        return 2 * numel

    def _encode_chunk_(self, values: Tensor, start: int, total: int, out: Tensor) -> None:
        place = _part(out.view(torch.bfloat16), start, values)
        place.copy_(values)
        values.sub_(place)

    def _decode_chunk(
        self, data: Tensor, start: int, out: Tensor, total: int, *, add: bool
    ) -> None:
        place = _part(data.view(torch.bfloat16), start, out)
        out.add_(place) if add else out.copy_(place)


class Int8Coder(Coder):
    """One byte an element: ``BLOCK`` neighbours share a scale, which is their largest / 127.

    The error of an element is at most half of the scale. Scales are float32 and lie first.
    """

    def bytes_for(self, numel: int) -> int:
        """One for each, and a scale for each block; rounded up to a multiple of 8."""
        return -(-(numel + 4 * (numel // BLOCK)) // 8) * 8

    def _encode_chunk_(self, values: Tensor, start: int, total: int, out: Tensor) -> None:
        rows = values.view(-1, BLOCK)
        steps = torch.abs(rows)
        scales = _scales(out, start, total, len(rows))
        scales.copy_(steps.amax(dim=1).div_(_LARGEST))
        # A block of zeros has scale 0, and one that is too small for float32 counts as such.
        scales.mul_(scales >= torch.finfo(torch.float32).tiny)
        wide = scales.to(values.dtype).unsqueeze(1)
        torch.mul(rows, wide.reciprocal().nan_to_num_(posinf=0.0), out=steps).round_()
        _part(_bytes(out, total), start, values).copy_(steps.view(-1))
        rows.sub_(steps.mul_(wide))  # the very product that the reader gets

    def _decode_chunk(
        self, data: Tensor, start: int, out: Tensor, total: int, *, add: bool
    ) -> None:
        rows = out.view(-1, BLOCK)
        scales = _scales(data, start, total, len(rows)).to(out.dtype).unsqueeze(1)
        steps = _part(_bytes(data, total), start, out).view(-1, BLOCK)
        if add:
            rows.addcmul_(steps.to(out.dtype), scales)
        else:
            torch.mul(rows.copy_(steps), scales, out=rows)


def _part(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole[start : start + like.numel()]


def _bytes(data: Tensor, total: int) -> Tensor:
    return data[4 * (total // BLOCK) :].view(torch.int8)


def _scales(data: Tensor, start: int, total: int, rows: int) -> Tensor:
    first = start // BLOCK
    return data[: 4 * (total // BLOCK)].view(torch.float32)[first : first + rows]
