"""Memory of the tensors of a rank: parameters, gradients, optimizer, block synchronisation.

Shared storage counts once. Storage that FSDP2 has freed does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.sharded_tensors import local_tensor

KINDS = (
    "parameters", "gradients", "optimizer", "outer state", "transfer buffers", "on the host"
)  # fmt: skip
"""The outer state is that of block synchronisation. Its offloaded part is on the host."""

_PACKAGE = "lightning_hier."


def bytes_by_kind(trainer: pl.Trainer) -> dict[str, int]:
    """Return the bytes of each of ``KINDS`` on this rank, during a fit."""
    session: Any = trainer.strategy._session
    parameters = list(trainer.lightning_module.parameters())
    optimizers = trainer.optimizers
    blocks = session.synchroniser.blocks or []
    tensors_by_kind: dict[str, Iterable[Tensor]] = {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer": _tensors_of([list(optimizer.state.values()) for optimizer in optimizers]),
        "transfer buffers": [
            tensor for shard in _shards_of(blocks) for tensor in _tensors_of(vars(shard))
        ],
        "on the host": _offloaded(blocks),
        "outer state": _tensors_of(blocks),
    }
    counted: set[int] = set()
    # The outer state is last, because the blocks contain the other kinds, too.
    sizes = {kind: _new_bytes(tensors, counted) for kind, tensors in tensors_by_kind.items()}
    return {kind: sizes[kind] for kind in KINDS}


def _tensors_of(root: Any) -> Iterator[Tensor]:
    """Return all tensors that are reachable from ``root`` by containers and our objects."""
    return (item for item in _reachable(root) if isinstance(item, Tensor))


def _shards_of(root: Any) -> list[Shard]:
    return [item for item in _reachable(root) if isinstance(item, Shard)]


def _offloaded(root: Any) -> list[Tensor]:
    """Return the tensors that would be in host memory if the model were on a GPU."""
    buckets = [item for item in _reachable(root) if isinstance(item, Bucket)]
    buckets = [bucket for bucket in buckets if bucket.outer.offload]
    moments = [bucket._previous for bucket in buckets if bucket._previous is not None]
    return [*moments, *(vector for bucket in buckets for vector in bucket.outer.vectors.values())]


def _reachable(root: Any) -> Iterator[Any]:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, (list, tuple, set)):
            waiting += item
        elif type(item).__module__.startswith(_PACKAGE) and hasattr(item, "__dict__"):
            waiting += vars(item).values()


def _new_bytes(tensors: Iterable[Tensor], counted: set[int]) -> int:
    """Return the bytes of storages that are not in ``counted``, and add them to it."""
    total = 0
    for tensor in tensors:
        storage = local_tensor(tensor).untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total
