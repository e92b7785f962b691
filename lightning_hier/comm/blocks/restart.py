"""Starts the buckets of a block from the state of a run with other shards or fragments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.flat import FlatView


def restart_buckets(
    buckets: Sequence[Bucket],
    members: Members,
    placement: ShardPlacement,
    saved: Sequence[Mapping[str, Any]],
) -> None:
    """Start a block with the global model in the module and the saved state of the outer steps.

    Fragments are consecutive parameters, so the vectors of all fragments of a kind, one after the
    other, are those of the whole model, and can be divided again. A collective of the group.

    Args:
        buckets: buckets of the block, by fragment.
        members: tensors of the block.
        placement: division among the ranks of the group.
        saved: state of each fragment of the other run, with vectors of all elements that this rank
            holds. Its tensors may be overwritten.

    Raises:
        ValueError: the state belongs to another model.

    """
    before = defaultdict(list)
    for fragment in saved:
        for state in fragment["buckets"]:
            if len(state["global_model"]):  # buffers have no outer step
                before[tuple(state["kind"])].append((state, fragment["pending"]))
    by_kind = defaultdict(list)
    for bucket in buckets:
        by_kind[bucket.kind].append(bucket)
    models = {kind: _flat(same) for kind, same in placement.by_kind(members.parameters).items()}
    for kind, same in by_kind.items():
        model = models.get(kind, torch.empty(0))  # empty for a kind of buffers only
        state = _adopted(same[0], model, before[kind])
        start = 0
        for bucket in same:
            place = slice(start, start + bucket.shard.elements)
            bucket.restart({n: v[place] if isinstance(v, Tensor) else v for n, v in state.items()})
            start = place.stop


def _adopted(
    bucket: Bucket, model: Tensor, saved: Sequence[tuple[Mapping[str, Any], bool]]
) -> dict[str, Any]:
    """State of the outer step of all elements of a kind."""
    sizes = [len(state["global_model"]) for state, _ in saved]
    if sum(sizes) != len(model):
        raise ValueError(
            f"the checkpoint's global update does not match the {len(model)} trainable elements "
            f"of {bucket.kind[0]} of this model: resume with the model that was saved"
        )
    if not len(model):
        return {}
    parts = [
        bucket.outer.adopt(state, of_fragment, pending=pending)
        for (state, pending), of_fragment in zip(saved, model.split(sizes), strict=True)
    ]
    adopted: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts if part[name] is not None]
        # State that is the same for all elements, such as a step count, is that of the last
        # fragment that has any: later ones may not have been synchronised yet.
        last = values[-1] if values else None
        adopted[name] = torch.cat(values) if isinstance(last, Tensor) else last
    return adopted


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    view = FlatView(parameters)
    # On the CPU, as the vectors of a saved run are.
    flat = torch.empty(len(view), dtype=parameters[0].dtype)
    view.read_(0, len(view), flat)
    return flat
