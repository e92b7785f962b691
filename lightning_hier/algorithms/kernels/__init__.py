"""Passes over large tensors: one interface, three backends.

- :mod:`reference`: plain torch, for any device and dtype. It defines the results.
- :mod:`native`: C loops for float32 on the CPU, compiled if the host has a C compiler.
- :mod:`triton_backend`: passes of GTC as Triton kernels, for CUDA.

All backends give bit-identical results, so ranks with different backends stay equal, except for
sums of squares, which are equal up to rounding in double precision and do not affect training.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.native import native_kernels
from lightning_hier.algorithms.kernels.reference import SumOfSquares, TorchKernels
from lightning_hier.algorithms.kernels.triton_backend import TritonKernels

# Minimum number of elements for compiled loops. For fewer, the overhead of a call exceeds the gain,
# and a small model does not have to wait for the compiler.
SMALLEST = 1 << 16

_TORCH = TorchKernels()
_TRITON = TritonKernels()


def kernels_for(first: Tensor, *others: Tensor | None) -> TorchKernels:
    """Choose the backend for the tensors of one pass.

    Args:
        first: a tensor that the pass reads or writes, as long as the longest.
        others: further tensors of the pass. None is skipped.

    """
    # Compiled loops assume one device, one dtype and contiguous memory.
    for tensor in (first, *others):
        if tensor is not None and not (
            tensor.device == first.device and tensor.dtype == first.dtype and tensor.is_contiguous()
        ):
            return _TORCH
    if first.is_cuda:
        return _TRITON
    suits_native = first.device.type == "cpu" and first.dtype == torch.float32
    if suits_native and first.numel() >= SMALLEST:
        return native_kernels() or _TORCH
    return _TORCH


def prepare_kernels(parameters: Iterable[Tensor]) -> None:
    """Compile the loops for these parameters in a thread, if they need any.

    Otherwise the first synchronisation would wait for the compiler. Does not wait.
    """
    # The sum, because parameters of one dtype are synchronised as one flat tensor.
    on_cpu = (p for p in parameters if p.device.type == "cpu" and p.dtype == torch.float32)
    if sum(parameter.numel() for parameter in on_cpu) >= SMALLEST:
        Thread(target=native_kernels, daemon=True).start()


def sum_of_squares(values: Tensor) -> SumOfSquares:
    """Sum of the squared magnitudes of a 1-D tensor; NaN or inf if an element is not finite."""
    return kernels_for(values).sum_of_squares(values) if values.numel() else 0.0


def all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or inf. Reads the tensor once and allocates only two scalars."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    if not flat.numel() or not flat.is_floating_point():
        return True
    # aminmax propagates NaN, and inf is always one of the two.
    low, high = torch.aminmax(flat)
    return bool(low.isfinite() & high.isfinite())
