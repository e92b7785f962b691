"""Division of the parameters into shards, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.trained import optimizer_parameters


@dataclass(frozen=True, eq=False)
class Shard:
    """Parameters of one optimizer that one server holds. The paper calls it a block.

    Attributes:
        number: number in messages, ``optimizer * world_size + home``.
        home: rank that serves the shard.
        optimizer: index of the optimizer.
        indices: indices of the parameters in the optimizer.
        parameters: parameters on this rank, in the same order.
        world_size: number of ranks at the start.

    """

    number: int
    home: int
    optimizer: int
    indices: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    world_size: int

    @cached_property
    def dtype(self) -> torch.dtype:
        """Dtype of the flat shard in messages, which represents each parameter exactly.

        Only for shards that are not empty.
        """
        return reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))

    @cached_property
    def size(self) -> int:
        """Number of elements in the shard."""
        return sum(parameter.numel() for parameter in self.parameters)

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """New tensors in the shapes of the parameters, with the values of a flat shard."""
        pieces = flat.split([parameter.numel() for parameter in self.parameters])
        return [
            piece.to(parameter.dtype, copy=True).view(parameter.shape)
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]


def plan_shards(optimizers: Sequence[Optimizer], world_size: int) -> list[Shard]:
    """Divide the trainable parameters of every optimizer into one shard per rank.

    Whole tensors, starting with the largest, are assigned to the rank with the fewest elements so
    far, over all optimizers. The plan is equal on all ranks. If there are fewer tensors than ranks,
    some shards are empty.
    """
    loads = [0] * world_size
    shards = []
    for number, optimizer in enumerate(optimizers):
        parameters = optimizer_parameters(optimizer)
        trained = [index for index, p in enumerate(parameters) if p.requires_grad]
        assigned: list[list[int]] = [[] for _ in range(world_size)]
        # Ties go to the first parameter and the lowest rank, so that all ranks have the same plan.
        for index in sorted(trained, key=lambda index: -parameters[index].numel()):
            rank = min(range(world_size), key=loads.__getitem__)
            loads[rank] += parameters[index].numel()
            assigned[rank].append(index)
        for rank, numbers in enumerate(assigned):
            # The Updater requires the order of the optimizer.
            indices = tuple(sorted(numbers))
            shards.append(
                Shard(
                    number=number * world_size + rank,
                    home=rank,
                    optimizer=number,
                    indices=indices,
                    parameters=tuple(parameters[index] for index in indices),
                    world_size=world_size,
                )
            )
    return shards
