"""Division of the parameters into shards, each held by one server."""

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
        number: number in messages, ``optimizer * servers + home``.
        home: rank that serves the shard.
        optimizer: index of the optimizer.
        parameters: parameters on this rank, in the order of the optimizer; none if it is empty.
        dtype: dtype of the flat shard in messages, which represents each parameter exactly.

    """

    number: int
    home: int
    optimizer: int
    parameters: tuple[Parameter, ...]
    dtype: torch.dtype

    @cached_property
    def size(self) -> int:
        """Number of elements in the shard."""
        return sum(parameter.numel() for parameter in self.parameters)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat shard in the shapes of the parameters."""
        pieces = flat.split([parameter.numel() for parameter in self.parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Copies of these views in the dtypes of the parameters."""
        views = zip(self.views(flat), self.parameters, strict=True)
        return [view.to(parameter.dtype, copy=True) for view, parameter in views]


def plan_shards(
    optimizers: Sequence[Optimizer], servers: int, *, least_dtype: torch.dtype = torch.bool
) -> list[Shard]:
    """Divide the trainable parameters of every optimizer into one shard per server.

    Whole tensors, starting with the largest, are assigned to the rank with the fewest elements so
    far, over all optimizers. The plan is equal on all ranks. If there are fewer tensors than
    servers, some shards are empty.

    Args:
        optimizers: optimizers of the user.
        servers: number of ranks that serve, the first ones.
        least_dtype: a dtype that those of the shards must represent as well. Every dtype represents
            ``torch.bool``.

    """
    loads = [0] * servers
    shards = []
    for number, optimizer in enumerate(optimizers):
        parameters = optimizer_parameters(optimizer)
        trained = [index for index, p in enumerate(parameters) if p.requires_grad]
        assigned: list[list[int]] = [[] for _ in range(servers)]
        # Ties go to the first parameter and the lowest rank, so that all ranks have the same plan.
        for index in sorted(trained, key=lambda index: -parameters[index].numel()):
            rank = min(range(servers), key=loads.__getitem__)
            loads[rank] += parameters[index].numel()
            assigned[rank].append(index)
        for rank, indices in enumerate(assigned):
            # The Updater requires the order of the optimizer.
            own = tuple(parameters[index] for index in sorted(indices))
            dtype = reduce(torch.promote_types, (p.dtype for p in own), least_dtype)
            shards.append(Shard(number * servers + rank, rank, number, own, dtype))
    return shards
