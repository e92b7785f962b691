"""What the tensors of a rank hold: parameters, gradients, optimizer, block synchronisation.

Storage that several tensors share counts once. Storage that FSDP2 has freed counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.sharded_tensors import local_tensor

KINDS = ("parameters", "gradients", "optimizer", "outer state", "transfer buffers")
"""The outer state is all that block synchronisation holds between two of its exchanges."""

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
        "outer state": tensors_of(blocks),
    }
    counted: set[int] = set()
    # The outer state comes last, as shards are part of the blocks.
    sizes = {kind: _new_bytes(tensors, counted) for kind, tensors in found.items()}
    return {kind: sizes[kind] for kind in KINDS}


def tensors_of(holder: Any) -> Iterator[Tensor]:
    """All tensors that objects of this package and containers below ``holder`` refer to."""
    return (own for own in _reached(holder) if isinstance(own, Tensor))


def _shards_of(holder: Any) -> list[Shard]:
    return [own for own in _reached(holder) if isinstance(own, Shard)]


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
