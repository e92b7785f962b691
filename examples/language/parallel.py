"""Tensor parallelism and FSDP2 for the transformer, on the mesh of Lightning's strategy."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from examples.language.transformer import Transformer

# Between the sub-blocks a rank has a part of the positions.
_POSITIONS = Shard(1)


def apply_tensor_parallel(model: Transformer, mesh: DeviceMesh, *, context: int) -> None:
    """Divide the matrices among the ranks of a mesh with one dimension, in place.

    Heads and hidden elements are divided within the sub-blocks, positions between them, and tokens
    in the embedding. Every rank of the mesh must call it.

    Args:
        model: with the same weights on all ranks.
        mesh: the ranks of one model.
        context: T, positions of every batch.

    Raises:
        ValueError: heads, hidden width, vocabulary or context are not multiples of the number of
            ranks.
    """
    sizes = {
        "heads": model.shape.heads,
        "the hidden width": model.shape.hidden,
        "vocabulary": model.embedding.num_embeddings,
        "context": context,
    }
    for name, value in sizes.items():
        if value % mesh.size():
            raise ValueError(
                f"{name} must be a multiple of tensor_parallel_size={mesh.size()}, got {value}; "
                "change one of the two (a vocabulary may be larger than the data's)"
            )
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=_POSITIONS),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=_POSITIONS, output_layouts=Replicate()),
        },
    )
    model.tie()  # each was given a parameter of its own
    for block in model.blocks:
        parallelize_module(block, mesh, _block_plan())


def _block_plan() -> dict[str, ParallelStyle]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(_POSITIONS, None, None),
            desired_input_layouts=(Replicate(), None, None),
        ),
        "attention.query_key_value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=_POSITIONS),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(_POSITIONS,), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=_POSITIONS),
    }


def shard_fully(model: Transformer, mesh: DeviceMesh) -> None:
    """Shard parameters, gradients and optimizer state over a mesh with one dimension, in place.

    A block is gathered when it is used; embedding and last norm stay gathered during a step. Every
    rank of the mesh must call it, after tensor parallelism.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
