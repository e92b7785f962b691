"""Short forms of real numbers for a slow network: two bytes or one for each element."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.block_passes import block_passes_for
from lightning_hier.algorithms.chunks import chunk_length

# Elements that share a scale: 4 bytes for so many of one byte each.
BLOCK = 512

# Elements coded at a time, a multiple of BLOCK: intermediate values stay in the cache.
_CHUNK = 1 << 16

_LARGEST = 127.0


class Codec:
    """Writes real numbers as bytes and reads them back.

    Values are 1-D, in float32 or float64, and their number is a multiple of ``BLOCK``.
    """

    def bytes_for(self, numel: int) -> int:
        """Bytes that ``numel`` elements take; a multiple of 8."""
        raise NotImplementedError

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """Write ``values + weight * plus`` into ``out`` and keep the error.

        Args:
            values: overwritten with that sum minus what :meth:`decode` will read.
            out: uint8, as long as :meth:`bytes_for` says, at an address that 8 divides.
            plus: 1-D, at most as long as ``values``, and added to the first of them.
            weight: of ``plus``.

        """
        if self._encode_compiled_(values, out, plus, weight):
            return
        length = chunk_length(values, _CHUNK)
        for start in range(0, values.numel(), length):
            chunk = values[start : start + length]
            if plus is not None:
                summand = _part(plus, start, chunk)
                chunk[: summand.numel()].add_(summand, alpha=weight)
            self._encode_chunk_(chunk, start, values.numel(), out)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Read as many elements as ``out`` has into it, or ``add`` them to it, in place."""
        if self._decode_compiled(data, out, add=add):
            return
        length = chunk_length(out, _CHUNK)
        for start in range(0, out.numel(), length):
            self._decode_chunk(data, start, out[start : start + length], out.numel(), add=add)

    def _encode_compiled_(
        self, values: Tensor, out: Tensor, plus: Tensor | None, weight: float
    ) -> bool:
        """The same by a compiled loop, where there is one for these tensors."""
        return False

    def _decode_compiled(self, data: Tensor, out: Tensor, *, add: bool) -> bool:
        """Likewise."""
        return False

    def _encode_chunk_(self, values: Tensor, start: int, total: int, out: Tensor) -> None:
        raise NotImplementedError

    def _decode_chunk(
        self, data: Tensor, start: int, out: Tensor, total: int, *, add: bool
    ) -> None:
        raise NotImplementedError


class BFloat16Codec(Codec):
    """Two bytes an element: rounds to the nearest bfloat16, a relative error of at most 2^-9."""

    def bytes_for(self, numel: int) -> int:
        """Two for each."""
        return 2 * numel

    def _encode_compiled_(
        self, values: Tensor, out: Tensor, plus: Tensor | None, weight: float
    ) -> bool:
        passes = block_passes_for(values, plus)
        if passes is not None:
            passes.encode_bfloat16_(values, plus, weight, out)
        return passes is not None

    def _encode_chunk_(self, values: Tensor, start: int, total: int, out: Tensor) -> None:
        place = _part(out.view(torch.bfloat16), start, values)
        place.copy_(values)
        values.sub_(place)

    def _decode_chunk(
        self, data: Tensor, start: int, out: Tensor, total: int, *, add: bool
    ) -> None:
        place = _part(data.view(torch.bfloat16), start, out)
        out.add_(place) if add else out.copy_(place)


class Int8Codec(Codec):
    """One byte an element: ``BLOCK`` neighbours share a scale, which is their largest / 127.

    The error of an element is at most half of the scale. Scales are float32 and lie first.
    """

    def bytes_for(self, numel: int) -> int:
        """One for each, and a scale for each block; rounded up to a multiple of 8."""
        return -(-(numel + 4 * (numel // BLOCK)) // 8) * 8

    def _encode_compiled_(
        self, values: Tensor, out: Tensor, plus: Tensor | None, weight: float
    ) -> bool:
        passes, total = block_passes_for(values, plus), values.numel()
        if passes is not None:
            scales = _scales(out, 0, total, total // BLOCK)
            passes.encode_int8_(values, plus, weight, scales, _bytes(out, total))
        return passes is not None

    def _decode_compiled(self, data: Tensor, out: Tensor, *, add: bool) -> bool:
        passes, total = block_passes_for(out), out.numel()
        if passes is not None:
            scales = _scales(data, 0, total, total // BLOCK)
            passes.decode_int8(out, scales, _bytes(data, total), add=add)
        return passes is not None

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
            rows.add_(steps.to(out.dtype).mul_(scales))
        else:
            torch.mul(rows.copy_(steps), scales, out=rows)


def _part(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole[start : start + like.numel()]


def _bytes(data: Tensor, total: int) -> Tensor:
    return data[4 * (total // BLOCK) :].view(torch.int8)


def _scales(data: Tensor, start: int, total: int, rows: int) -> Tensor:
    first = start // BLOCK
    return data[: 4 * (total // BLOCK)].view(torch.float32)[first : first + rows]
