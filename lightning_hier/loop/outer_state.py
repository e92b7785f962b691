"""Vectors of outer steps by the names of parameters, from which other ranks or groups start.

A rank has a part of each vector, such as W or Delta. It is divided here into the parts of each
parameter, which belong together whatever the division was: a part of a parameter that FSDP2 or
tensor parallelism divides has its place in the whole tensor, and any other is a range of the flat
tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.sharded_tensors import local_tensor

State = dict[str, Any]

# Elements of a tensor: its whole shape, the first element in each dimension, and their shape.
Place = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def outer_state(blocks: Iterable[ModelBlock], names: Mapping[Parameter, str]) -> list[list[State]]:
    """State of the outer steps of each block on this rank, without copying tensors.

    A collective as :meth:`ModelBlock.outer_states` is.

    Args:
        blocks: blocks of the optimizers.
        names: names of the parameters.

    Returns:
        For each block the state of each fragment and dtype: ``"vectors"`` by name, one part after
        the other, the ``"places"`` of the parts in the ``"parameters"``, and settings.

    """
    return [
        [_of_bucket(parameters, start, state, names) for parameters, start, state in own]
        for own in (block.outer_states() for block in blocks)
    ]


def _of_bucket(
    parameters: Sequence[Parameter],
    start: int,
    state: Mapping[str, Any],
    names: Mapping[Parameter, str],
) -> State:
    vectors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return {
        **{name: value for name, value in state.items() if name not in vectors},
        "parameters": [names[parameter] for parameter in parameters],
        "places": [*_places(parameters, start, len(vectors["global_model"]))],
        "vectors": vectors,
    }


def _places(parameters: Sequence[Parameter], start: int, length: int) -> Iterator[Place]:
    """The place in each parameter of a range that begins at ``start`` of all their elements."""
    first = 0
    for parameter in parameters:
        local = local_tensor(parameter)
        end = first + local.numel()
        # Not behind the end, of which torch.distributed.checkpoint makes an error.
        low, high = min(max(first, start), end), min(end, start + length)
        if isinstance(parameter, DTensor):
            yield tuple(parameter.shape), _start_of(parameter), tuple(local.shape)
        else:
            yield (local.numel(),), (low - first,), (max(high - low, 0),)
        first = end


def _start_of(parameter: Tensor) -> tuple[int, ...]:
    """First element of what this rank holds, in each dimension. Flat if all ranks hold all."""
    if not isinstance(parameter, DTensor):
        return (0,)
    (chunk,) = parameter.__create_chunk_list__()
    return tuple(chunk.offsets)


def parts_of(bucket: Mapping[str, Any]) -> Iterator[tuple[str, str, Place, Tensor]]:
    """Vector, parameter, place and values of each part of a fragment and dtype."""
    sizes = [math.prod(shape) for _, _, shape in bucket["places"]]
    for vector, values in bucket["vectors"].items():
        pieces = values.split(sizes)
        for name, place, piece in zip(bucket["parameters"], bucket["places"], pieces, strict=True):
            yield vector, name, place, piece.view(place[2])


class JoinedParts:
    """Joins the parts of several ranks to the elements that this rank holds.

    Args:
        parameters: parameters by name.

    Attributes:
        vectors: these elements, flat, by vector and parameter.

    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters
        self.vectors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)

    def add(self, bucket: Mapping[str, Any]) -> None:
        """Copy what a rank has saved of a fragment and dtype, see :func:`outer_state`."""
        for vector, name, (_, start, _), values in parts_of(bucket):
            parameter, own = self._parameters[name], self.vectors[vector]
            local = local_tensor(parameter)
            if name not in own:
                own[name] = torch.zeros(local.numel(), dtype=values.dtype)
            shape = local.shape if isinstance(parameter, DTensor) else (local.numel(),)
            _copy_overlap_(own[name].view(shape), _start_of(parameter), values, start)


def _copy_overlap_(target: Tensor, at: Sequence[int], values: Tensor, start: Sequence[int]) -> None:
    """Copy the elements that two parts of a tensor have in common."""
    low = [max(pair) for pair in zip(at, start, strict=True)]
    ends = zip(at, target.shape, start, values.shape, strict=True)
    high = [min(a + n, s + m) for a, n, s, m in ends]
    if all(a < b for a, b in zip(low, high, strict=True)):
        ranges = [*zip(low, high, strict=True)]
        inside = tuple(slice(a - o, b - o) for (a, b), o in zip(ranges, at, strict=True))
        of_part = tuple(slice(a - o, b - o) for (a, b), o in zip(ranges, start, strict=True))
        target[inside].copy_(values[of_part])


def outer_states(
    rest: Sequence[Mapping[str, Any]], vectors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, State]:
    """State of the outer step of each parameter of a block, by name.

    Args:
        rest: state of each fragment and dtype of the block, see :func:`outer_state`.
        vectors: the elements that this rank holds, flat, by vector and parameter.

    """
    states: dict[str, State] = {}
    for bucket in rest:
        for name, counts in zip(bucket["parameters"], bucket["counts"], strict=True):
            own = {vector: values[name] for vector, values in vectors.items() if name in values}
            if not bucket["has_update"]:
                own.pop("in_flight", None)
            states[name] = {**bucket, **own, "counts": counts}
    return states
