"""What the tensors of a rank hold: parameters, gradients, optimizer, block synchronisation.

Storage that several tensors share counts once. Storage that FSDP2 has freed counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.offloaded_step import OffloadedStep
from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.sharded_tensors import local_tensor

ON_DEVICE = ("parameters", "gradients", "optimizer", "outer state", "transfer buffers")
"""The outer state is all that block synchronisation holds between two of its exchanges."""

KINDS = (*ON_DEVICE, "on the host")
"""The last is the part of the outer state that is offloaded."""

_PACKAGE = "lightning_hier."


def held(trainer: pl.Trainer) -> dict[str, int]:
    """Bytes of each of ``KINDS`` on this rank, while a strategy of ours fits."""
    session: Any = trainer.strategy._session  # type: ignore[attr-defined]
    parameters = list(trainer.lightning_module.parameters())
    optimizers = trainer.optimizers
    blocks = session.synchroniser.blocks or []
    found: dict[str, Iterable[Tensor]] = {
        "parameters": parameters,
        "gradients": [own.grad for own in parameters if own.grad is not None],
        "optimizer": tensors_of([list(own.state.values()) for own in optimizers]),
        "transfer buffers": [
            own for shard in _shards_of(blocks) for own in tensors_of(vars(shard))
        ],
        "on the host": _offloaded(blocks),
        "outer state": tensors_of(blocks),
    }
    counted: set[int] = set()
    # The outer state comes last, as the rest is part of the blocks.
    sizes = {kind: _new_bytes(tensors, counted) for kind, tensors in found.items()}
    return {kind: sizes[kind] for kind in KINDS}


def tensors_of(holder: Any) -> Iterator[Tensor]:
    """All tensors that objects of this package and containers below ``holder`` refer to."""
    return (own for own in _reached(holder) if isinstance(own, Tensor))


def _shards_of(holder: Any) -> list[Shard]:
    return [own for own in _reached(holder) if isinstance(own, Shard)]


def _offloaded(holder: Any) -> list[Tensor]:
    """Tensors that would lie in the memory of the host if the model were on a GPU."""
    buckets = [own for own in _reached(holder) if isinstance(own, Bucket)]
    buckets = [own for own in buckets if isinstance(own.outer, OffloadedStep)]
    moments = [own._previous for own in buckets if own._previous is not None]
    return [*moments, *(vector for own in buckets for vector in own.outer.vectors.values())]


def _reached(holder: Any) -> Iterator[Any]:
    seen: set[int] = set()
    waiting = [holder]
    while waiting:
        own = waiting.pop()
        if id(own) in seen:
            continue
        seen.add(id(own))
        yield own
        if isinstance(own, Mapping):
            waiting += own.values()
        elif isinstance(own, (list, tuple, set)):
            waiting += own
        elif type(own).__module__.startswith(_PACKAGE) and hasattr(own, "__dict__"):
            waiting += vars(own).values()


def _new_bytes(tensors: Iterable[Tensor], counted: set[int]) -> int:
    """Bytes of storages that are not counted yet, which then are."""
    total = 0
    for tensor in tensors:
        storage = local_tensor(tensor).untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total
