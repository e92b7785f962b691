"""Broadcast and mean of many tensors, in place, as one message for each dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.flat import FlatView

# Dtypes that neither gloo nor NCCL sends. DDP broadcasts tensors as they are, not as bytes.
_NEVER_SENT = (torch.int16, torch.uint16, torch.uint32, torch.uint64)


def is_averaged(tensor: Tensor) -> bool:
    """Whether a tensor is averaged over ranks. Integers, masks and 8-bit floats are not."""
    return (tensor.is_floating_point() and tensor.itemsize > 1) or tensor.is_complex()


def check_sendable(module: Module, backend: str) -> None:
    """Check that DDP can send all tensors of a module over ``backend``.

    Raises:
        ValueError: DDP cannot send some tensors. The error names them.

    """
    named = [*module.named_parameters(), *module.named_buffers()]
    refused = [
        f"{name} ({tensor.dtype})"
        for name, tensor in named
        if tensor.dtype in _NEVER_SENT
        or (backend == "gloo" and tensor.is_floating_point() and tensor.itemsize == 1)
    ]
    if refused:
        raise ValueError(
            f"DDP can't send {', '.join(refused)} over {backend}: use int32 or int64, or store the "
            "bytes as a buffer of uint8 (tensor.view(torch.uint8))"
        )


def without_mean(buffers: Mapping[Tensor, str]) -> set[str]:
    """Names of floating-point buffers, before training, that have no mean.

    These are buffers with NaN or inf, such as attention masks, and unit vectors whose name ends in
    ``_u`` or ``_v``, as of ``spectral_norm``: their mean is shorter.
    """
    return {
        name
        for buffer, name in buffers.items()
        # torch has no isfinite for 8-bit floats, which are not averaged in any case.
        if is_averaged(buffer) and (not buffer.isfinite().all() or _is_direction(name, buffer))
    }


def _is_direction(name: str, buffer: Tensor) -> bool:
    # By name and length, a rule that users can follow with vectors of their own.
    if not name.endswith(("_u", "_v")) or buffer.dim() != 1:
        return False
    return abs(float(torch.linalg.vector_norm(buffer)) - 1.0) < 0.01


def by_dtype(tensors: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """Tensors grouped by dtype, in an order that is equal on all ranks."""
    # Sorted, because each dtype is a collective, and all ranks must start them in the same order.
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in sorted(tensors, key=lambda tensor: str(tensor.dtype)):
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups


def broadcast_tensors_(
    tensors: Sequence[Tensor], channel: Channel, kind: str, *, source: int = 0
) -> None:
    """Copy the values of the rank at position ``source`` to every rank of ``channel``, in place.

    A collective of the channel. Tensors that occur twice are sent once.
    """
    if channel.size > 1:
        for view, values in broadcast_copies(tensors, channel, kind, source=source):
            view.write_from(values)


def broadcast_buffers_(buffers: Sequence[Tensor], communicators: Communicators) -> None:
    """Give all ranks the buffers of rank 0 or, of divided ones, those of the first group, in place.

    A collective of the world.
    """
    whole = [buffer for buffer in buffers if not isinstance(buffer, DTensor)]
    divided = [buffer for buffer in buffers if isinstance(buffer, DTensor)]
    broadcast_tensors_(whole, communicators.world, "buffers")
    broadcast_tensors_(divided, communicators.across, "buffers")


def broadcast_copies(
    tensors: Sequence[Tensor], channel: Channel, kind: str, *, source: int = 0
) -> Iterator[tuple[FlatView, Tensor]]:
    """Broadcast copies of tensors, as :func:`broadcast_tensors_` does, and write nothing.

    Yields:
        Tensors of one dtype, and the values of the rank at position ``source`` for them.

    """
    distinct = list({id(tensor): tensor.detach() for tensor in tensors}.values())
    for same in by_dtype(distinct).values():
        view = FlatView(same)
        flat = view.copied()
        # As bytes, because no backend supports all dtypes, such as int16, uint16 and float8.
        channel.broadcast_(flat.view(torch.uint8), kind, source).wait()
        yield view, flat


def average_tensors_(tensors: Sequence[Tensor], channel: Channel, kind: str) -> None:
    """Average tensors over ``channel``, in place. Integers take the values of its first rank.

    A collective of the channel. The tensors must be on the device of collectives.
    """
    if channel.size == 1:
        return
    averaged = [tensor for tensor in tensors if is_averaged(tensor)]
    for same in by_dtype(averaged).values():
        view = FlatView(same)
        flat = view.copied()
        # Divided before the sum, so that half precision stays in range.
        channel.all_reduce_(flat.div_(channel.size), kind).wait()
        view.write_from(flat)
    others = [tensor for tensor in tensors if not is_averaged(tensor)]
    broadcast_tensors_(others, channel, kind)
