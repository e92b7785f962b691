"""Starts the buckets of a block from the state of a run with other shards or fragments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import by_dtype
from lightning_hier.comm.flat import FlatView


def restart_buckets(
    buckets: Sequence[Bucket], members: Members, saved: Sequence[Mapping[str, Any]]
) -> None:
    """Start a block with the global model in the module and the saved state of the outer steps.

    Fragments are consecutive parameters, so the vectors of all fragments of a dtype, one after the
    other, are those of the whole model, and can be divided again. A collective of the group.

    Args:
        buckets: buckets of the block, by fragment.
        members: tensors of the block.
        saved: state of each fragment of the other run, with whole vectors.

    Raises:
        ValueError: the state belongs to another model.

    """
    before = defaultdict(list)
    for fragment in saved:
        for state in fragment["buckets"]:
            if state["elements"]:  # buffers have no outer step
                before[state["dtype"]].append((state, fragment["pending"]))
    own = defaultdict(list)
    for bucket in buckets:
        own[str(bucket.dtype)].append(bucket)
    models = {str(dtype): _flat(found) for dtype, found in by_dtype(members.parameters).items()}
    for dtype, same in own.items():
        model = models.get(dtype, torch.empty(0))
        state = _adopted(same[0], dtype, model, before[dtype])
        start = 0
        for bucket in same:
            place = slice(start, start + bucket.shard.elements)
            bucket.restart({n: v[place] if isinstance(v, Tensor) else v for n, v in state.items()})
            start = place.stop


def _adopted(
    bucket: Bucket, dtype: str, model: Tensor, saved: Sequence[tuple[Mapping[str, Any], bool]]
) -> dict[str, Any]:
    """State of the outer step of all elements of a dtype."""
    if sum(state["elements"] for state, _ in saved) != len(model):
        raise ValueError(
            f"the checkpoint's global update does not match the {len(model)} trainable elements "
            f"of {dtype} of this model: resume with the model that was saved"
        )
    if not len(model):
        return {}
    sizes = [state["elements"] for state, _ in saved]
    parts = [
        bucket.outer.adopt(state, own, pending=pending)
        for (state, pending), own in zip(saved, model.split(sizes), strict=True)
    ]
    found: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts if part[name] is not None]
        # State that is the same for all elements, such as a step count, is that of the last
        # fragment that has any: later ones may not have been synchronised yet.
        last = values[-1] if values else None
        found[name] = torch.cat(values) if isinstance(last, Tensor) else last
    return found


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    view = FlatView(parameters)
    flat = torch.empty(len(view), dtype=parameters[0].dtype)
    view.read_(0, len(view), flat)
    return flat
