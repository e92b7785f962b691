"""State of outer steps in the folder of a divided module, for runs that divide it otherwise.

A vector, such as W or Delta, is saved as one tensor for each parameter, divided as the parameter
is. ``torch.distributed.checkpoint`` reads the part of it that a rank of any other mesh holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.blocks.shard_placement import Kind, ShardPlacement
from lightning_hier.comm.sharded_tensors import local_tensor, sharded_like
from lightning_hier.strategies.checkpoints.rank_files import State

# By optimizer, vector and parameter.
_Tensors = dict[str, dict[str, dict[str, Tensor]]]


def outer_tensors(
    blocks: Sequence[ModelBlock], names: Mapping[Parameter, str]
) -> tuple[_Tensors, list[list[State]]]:
    """State of the outer steps, without copying tensors. Does not communicate.

    Args:
        blocks: blocks of the optimizers, with nothing in flight.
        names: names of the parameters.

    Returns:
        The vectors, as tensors ``outer_<optimizer>.<vector>.<parameter>``. For each block, the rest
        of the state of each fragment and dtype, with the names of its vectors and parameters.

    """
    tensors: _Tensors = {}
    rest: list[list[State]] = []
    for index, block in enumerate(blocks):
        by_vector = tensors[_key(index)] = {}
        rest.append([])
        for parameters, _, state in block.outer_states():
            vectors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            for name, vector in vectors.items():
                by_vector.setdefault(name, {}).update(_by_parameter(vector, parameters, names))
            settings = {name: value for name, value in state.items() if name not in vectors}
            settings |= {"vectors": list(vectors), "parameters": [names[p] for p in parameters]}
            rest[-1].append(settings)
    return tensors, rest


def load_outer_states(
    rest: Sequence[Sequence[Mapping[str, Any]]],
    parameters: Mapping[str, Parameter],
    placement: ShardPlacement,
    path: str,
) -> list[list[State]]:
    """State of the outer step of each parameter, with the part of it that this rank holds.

    A parameter may be of another kind than in the saved run. For each block, the states are in the
    order of the module, as those of fragments. A collective of the group.

    Args:
        rest: second result of :func:`outer_tensors` in the saved run.
        parameters: parameters by name.
        placement: division of the module among the ranks of this group.
        path: folder.

    """
    # Imported here, because importing it takes long.
    from torch.distributed.checkpoint.state_dict_loader import load

    tensors: _Tensors = {}
    for index, buckets in enumerate(rest):
        by_vector = tensors[_key(index)] = {}
        for bucket in buckets:
            for vector in bucket["vectors"]:
                # Copies in the memory of the host, which are overwritten.
                by_vector.setdefault(vector, {}).update(
                    {n: parameters[n].detach().to("cpu", copy=True) for n in bucket["parameters"]}
                )
    # Each group on its own, because its ranks together hold the whole module.
    load(tensors, checkpoint_id=path, process_group=placement.group.group)
    states = []
    for index, buckets in enumerate(rest):
        # In the order of the module, not of the saved buckets: another mesh has other buckets.
        of_name = {name: bucket for bucket in buckets for name in bucket["parameters"]}
        states.append(
            [
                _state(name, placement.kind(parameter), of_name[name], tensors[_key(index)])
                for name, parameter in parameters.items()
                if name in of_name
            ]
        )
    return states


def _key(optimizer: int) -> str:
    return f"outer_{optimizer}"


def _by_parameter(
    vector: Tensor, parameters: Sequence[Parameter], names: Mapping[Parameter, str]
) -> dict[str, Tensor]:
    """Views of a vector, divided as the parameters are."""
    shards = [local_tensor(parameter) for parameter in parameters]
    pieces = vector.split([shard.numel() for shard in shards])
    return {
        names[parameter]: _divided_as(parameter, piece.view(shard.shape))
        for parameter, shard, piece in zip(parameters, shards, pieces, strict=True)
    }


def _divided_as(parameter: Parameter, local: Tensor) -> Tensor:
    if local.device == parameter.device:
        return sharded_like(local, parameter)
    # An offloaded vector. A DTensor of it as it is would move to the device of the mesh.
    tensor = parameter.detach().to(local.device, copy=True)
    local_tensor(tensor).copy_(local)
    return tensor


def _state(
    name: str,
    kind: Kind,
    bucket: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
) -> State:
    """State of a fragment that consists of one parameter."""
    vectors = {
        vector: local_tensor(tensors[vector][name]).reshape(-1)
        for vector in bucket["vectors"]
        if vector != "in_flight" or bucket["has_update"]
    }
    return {"pending": bucket["pending"], "buckets": [{**bucket, **vectors, "kind": kind}]}
