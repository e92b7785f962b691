"""Tensor parallelism and FSDP2 for the transformer, on the device mesh of the strategy."""

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

# Between attention and feed-forward network, activations are sharded by position.
_POSITIONS = Shard(1)


def apply_tensor_parallel(model: Transformer, mesh: DeviceMesh, *, context: int) -> None:
    """Shard the matrices over the ranks of a one-dimensional mesh, in place.

    Attention is sharded by head, the feed-forward network by hidden element, the embedding by
    token, and the activations between them by position. Every rank of the mesh must call it.

    Args:
        model: model with the same weights on all ranks.
        mesh: mesh of the ranks of one model.
        context: T, number of positions of every batch.

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
                "change one of the two (the vocabulary may be larger than that of the data)"
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
    model.tie()  # parallelize_module has replaced the shared parameter by two
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
    """Shard parameters, gradients and optimizer state over a one-dimensional mesh, in place.

    The parameters of a block are gathered when it is used. Embedding and last norm stay gathered
    during a step. Every rank of the mesh must call it, after tensor parallelism.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
