"""The reference backend: every pass in plain torch, for any device and dtype.

The tensors of a step are larger than the cache, so the cost of a pass is the number of times that
it goes through memory. Each pass processes its tensors in chunks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks, chunks_with_starts
from lightning_hier.algorithms.kernels.payload import (
    INTEGER,
    SIGN_BIT,
    add_payloads_,
    add_words_,
    magnitude_bits,
)
from lightning_hier.algorithms.kernels.quantisation_groups import (
    INT4_GROUP,
    INT4_ZERO,
    LARGEST_INT4,
    LARGEST_INT8,
    QUANTISATION_GROUP,
    groups,
    quantise,
    with_sum,
)

SumOfSquares = float | Tensor
"""In double precision. On an accelerator it is a tensor with one element, so that the host need not
wait until the device has computed it."""


class BlockCoefficients(NamedTuple):
    """Coefficients of one step of block momentum.

    Attributes:
        eta: block momentum.
        zeta: block learning rate.
        ahead: whether W_g is W + eta * Delta instead of W.
        adds_update: whether eta * Delta(t-1) is also added to W(t).
        inside: whether W(t) contains eta * Delta(t).

    """

    eta: float
    zeta: float
    ahead: bool
    adds_update: bool
    inside: bool = False


class TorchKernels:
    """Interface of all backends, and reference implementation of each pass.

    Tensors are 1-D. GTC has two passes because a step counts only if it is finite on all ranks. The
    residual is not changed before the second one. No pass allocates memory of the tensor's size.
    """

    def encode_(
        self, values: Tensor, residual: Tensor, threshold: float, *, scale: float = 1.0
    ) -> tuple[Tensor, bool]:
        """Add the residual to the gradient, in place, and select the elements to send.

        An element above T is sent as +T, one below -T as -T (two_tiered_bmuf_gtc 2.1).

        Args:
            values: gradient times ``scale``, at most 2**31 elements. Becomes residual plus
                gradient.
            residual: error feedback of the same length. Not changed.
            threshold: T, above 0, in units of ``residual``.
            scale: current factor of loss scaling.

        Returns:
            The selected elements as int32 words (:mod:`payload`), in ascending order of index, and
            whether all values are finite. If not, the words are undefined.

        """
        limit, integer = magnitude_bits(threshold, values.dtype), INTEGER[values.itemsize]
        words = [torch.empty(0, dtype=torch.int32, device=values.device)]
        start, finite = 0, True
        for chunk, kept in chunks(values, residual):
            if scale != 1.0:
                chunk.div_(scale)
            chunk.add_(kept)
            # In place, because torch vectorises comparisons with integer results, not with bool.
            index = chunk.abs().view(integer).gt_(limit).nonzero().view(-1)
            selected = chunk[index]
            # Values that are not finite are always selected (magnitude_bits).
            finite = finite and bool(selected.isfinite().all())
            # index - 2**31 is the two's complement form of "sign bit set, then the index".
            words.append(index.add_(start).sub_((selected < 0).long().mul_(SIGN_BIT)).int())
            start += chunk.numel()
        return torch.cat(words), finite

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
        """Update the residual, and overwrite the values with the mean over all workers.

        Args:
            values: residual plus gradient, from :meth:`encode_`. Becomes the mean: the sum of the
                signs of all workers, times each of ``factors`` in this order. Sums of signs are
                integers, so the mean has the same bits for every encoding and on every rank.
            residual: becomes ``values`` minus the elements that this worker sent.
            sent: words of this worker.
            threshold: T.
            rows: payload of each worker. If there is none, the values become zero.
            factors: at most two.
            bitmaps: whether the payloads are bitmaps instead of words.

        """
        # The signs are summed in `values`, so that no tensor of its size is allocated.
        for chunk, kept in chunks(values, residual):
            kept.copy_(chunk)
            chunk.zero_()
        add_words_(residual, sent, -threshold)
        add_payloads_(values, rows, factors, bitmaps=bitmaps)

    def sum_of_squares(self, values: Tensor) -> SumOfSquares:
        """Sum of the squared magnitudes in double precision; NaN or inf if a value is."""
        flat = torch.view_as_real(values).flatten() if values.is_complex() else values
        if flat.device.type != "cpu":
            # One kernel, and no wait for the device.
            norm: Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
            return norm.square()
        total = 0.0
        # vector_norm would first convert the whole tensor, which takes longer than reading it.
        for (chunk,) in chunks(flat):
            wide = chunk.double()
            total += float(torch.dot(wide, wide))
        return total

    def subtract_start_(
        self, model: Tensor, global_model: Tensor, update: Tensor | None, eta: float
    ) -> SumOfSquares:
        """Subtract W + eta * Delta, or W if there is no Delta, from a model, in place.

        Returns:
            The sum of squares of the difference.

        """
        # Two operations in this order: the other backends round in the same way.
        model.sub_(global_model)
        if update is not None:
            model.sub_(update, alpha=eta)
        return self.sum_of_squares(model)

    def advance_(
        self, mean: Tensor, global_model: Tensor, update: Tensor | None, by: BlockCoefficients
    ) -> tuple[SumOfSquares, SumOfSquares]:
        """``block_momentum.advance_`` from models, in place, with the coefficients ``by``."""
        of_mean: SumOfSquares = 0.0
        of_update: SumOfSquares = 0.0
        for weights, model, delta in chunks(mean, global_model, update):
            of_mean += self.sum_of_squares(weights)
            start = model.add(delta, alpha=by.eta) if by.ahead else model
            # A new tensor, because `start` may be W, which is overwritten next.
            moved = weights - start
            if by.zeta == 1.0:  # W is Wbar bit for bit, as block_momentum.advance_ promises
                model.copy_(weights)
            else:
                moved.mul_(by.zeta)
                torch.lerp(start, weights, by.zeta, out=model)
            if by.adds_update:
                model.add_(delta, alpha=by.eta)
            if delta is not None:
                moved = torch.add(moved, delta, alpha=by.eta, out=delta)
            _write_start(weights, model, delta, by)
            of_update += self.sum_of_squares(moved)
        return of_mean, of_update

    def advance_by_(
        self, gradient: Tensor, global_model: Tensor, update: Tensor | None, by: BlockCoefficients
    ) -> tuple[SumOfSquares, SumOfSquares]:
        """``block_momentum.advance_`` from updates, in place, with the coefficients ``by``."""
        of_gradient: SumOfSquares = 0.0
        of_update: SumOfSquares = 0.0
        for values, model, delta in chunks(gradient, global_model, update):
            of_gradient += self.sum_of_squares(values)
            if by.zeta != 1.0:
                values.mul_(by.zeta)
            if by.adds_update:
                model.add_(delta, alpha=by.eta)
            moved = values
            if delta is not None:
                moved = torch.add(values, delta, alpha=by.eta, out=delta)
                if by.inside:
                    moved = values.add_(delta, alpha=by.eta)
            model.add_(moved)
            # Before the start model overwrites `values`, which `moved` may be.
            of_update += self.sum_of_squares(moved)
            _write_start(values, model, delta, by)
        return of_gradient, of_update

    def encode_int8_(
        self, values: Tensor, plus: Tensor | None, weight: float, scales: Tensor, out: Tensor
    ) -> None:
        """``Int8Codec.encode_``, with one scale (float32) per group of ``out`` (int8)."""
        for chunk, start in with_sum(values, plus, weight):
            rows, scale, steps = groups(chunk, start, scales, out, QUANTISATION_GROUP)
            rounded, wide = quantise(rows, scale, LARGEST_INT8)
            steps.copy_(rounded)
            # The same product as in decode_int8, so that the error is exact.
            rows.sub_(rounded.mul_(wide))

    def decode_int8(self, out: Tensor, scales: Tensor, steps: Tensor, *, add: bool) -> None:
        """``Int8Codec.decode``."""
        for chunk, start in chunks_with_starts(out):
            rows, scale, read = groups(chunk, start, scales, steps, QUANTISATION_GROUP)
            wide = scale.to(out.dtype).unsqueeze(1)
            if add:
                rows.add_(read.to(out.dtype).mul_(wide))
            else:
                torch.mul(rows.copy_(read), wide, out=rows)

    def encode_int4_(
        self, values: Tensor, plus: Tensor | None, weight: float, scales: Tensor, out: Tensor
    ) -> None:
        """``Int4Codec.encode_``, with one scale (float32) per group, two elements in a byte.

        Byte i of a group holds element i in its lower half and element i + 64 in its upper half, so
        that both halves are contiguous.
        """
        for chunk, start in with_sum(values, plus, weight):
            rows, scale, packed = groups(chunk, start, scales, out, INT4_GROUP)
            rounded, wide = quantise(rows, scale, LARGEST_INT4)
            lower, upper = rounded.chunk(2, dim=1)
            # 16 * (upper + INT4_ZERO) + lower + INT4_ZERO
            packed.copy_((upper * 16).add_(lower).add_(17 * INT4_ZERO))
            rows.sub_(rounded.mul_(wide))

    def decode_int4(self, out: Tensor, scales: Tensor, packed: Tensor, *, add: bool) -> None:
        """``Int4Codec.decode``."""
        for chunk, start in chunks_with_starts(out):
            rows, scale, read = groups(chunk, start, scales, packed, INT4_GROUP)
            wide = scale.to(out.dtype).unsqueeze(1)
            for half, bits in zip(rows.chunk(2, dim=1), (read & 15, read >> 4), strict=True):
                values = bits.to(out.dtype).sub_(INT4_ZERO).mul_(wide)
                half.add_(values) if add else half.copy_(values)

    def largest(self, values: Tensor, length: int, number: int) -> Tensor:
        """Select the ``number`` largest magnitudes in each row of ``length`` elements.

        NaN and inf count as the largest. Of equal magnitudes, the first are selected.

        Returns:
            Their offsets in their rows (int16), row by row and in ascending order.

        """
        # Compared as bits, of which NaN has the largest. What topk selects depends on the device,
        # so only its smallest value is used.
        magnitudes = values.abs().view(INTEGER[values.itemsize]).view(-1, length)
        least = magnitudes.topk(number, dim=1, sorted=False).values.amin(1, keepdim=True)
        above, equal = magnitudes > least, magnitudes == least
        wanted = number - above.sum(1, keepdim=True)
        # A row has at most SELECTION_BLOCK elements, whose number fits into int16.
        chosen = above.logical_or_(equal & (equal.cumsum(1, dtype=torch.int16) <= wanted))
        # Without a wait for the device, because the number of offsets is known.
        return chosen.nonzero_static(size=len(chosen) * number)[:, 1].to(torch.int16)

    def encode_bfloat16_(
        self, values: Tensor, plus: Tensor | None, weight: float, out: Tensor
    ) -> None:
        """``BFloat16Codec.encode_``."""
        for chunk, start in with_sum(values, plus, weight):
            rounded = out[start : start + chunk.numel()]
            rounded.copy_(chunk)
            # The bits of the largest finite number are those of inf minus 1.
            too_large = rounded.isinf().logical_and_(chunk.isfinite())
            rounded.view(torch.int16).sub_(too_large.to(torch.int16))
            chunk.sub_(rounded)


def _write_start(
    out: Tensor, global_model: Tensor, update: Tensor | None, by: BlockCoefficients
) -> None:
    if by.ahead and update is not None:
        torch.add(global_model, update, alpha=by.eta, out=out)
    else:
        out.copy_(global_model)
