"""Which parameters make up which block, and which rank serves it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


@dataclass(frozen=True, eq=False)
class ParameterBlock:
    """Parameters of one optimizer that one server holds.

    Attributes:
        number: by which messages name it: ``optimizer * world_size + home``.
        home: rank that serves it unless that rank is gone.
        optimizer: index of the optimizer.
        indices: of the parameters in the optimizer.
        parameters: on this rank, in the same order.

    """

    number: int
    home: int
    optimizer: int
    indices: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the flat block in messages: wide enough for each of its parameters."""
        return reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))

    @cached_property
    def size(self) -> int:
        """Elements of the block."""
        return sum(parameter.numel() for parameter in self.parameters)

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Tensors of their own for the parameters, with the values of a flat block."""
        pieces = flat.split([parameter.numel() for parameter in self.parameters])
        return [
            piece.to(parameter.dtype, copy=True).view(parameter.shape)
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]

    def owner(self, gone: Collection[int], world_size: int) -> int:
        """The rank that serves the block: its home or the next that is there, in cyclic order.

        Raises:
            RuntimeError: no rank is there.

        """
        for step in range(world_size):
            rank = (self.home + step) % world_size
            if rank not in gone:
                return rank
        raise RuntimeError(f"no rank is left to serve block {self.number}")


def plan_blocks(optimizers: Sequence[Optimizer], world_size: int) -> list[ParameterBlock]:
    """Cut the trainable parameters of every optimizer into one block a rank.

    Whole tensors, the largest first, each to the rank that has least so far, over all optimizers.
    The same on all ranks. Where there are fewer tensors than ranks some blocks are empty: their
    servers have nothing to do.
    """
    loads = [0] * world_size
    blocks = []
    for number, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [index for index, p in enumerate(parameters) if p.requires_grad]
        held: list[list[int]] = [[] for _ in range(world_size)]
        for index in sorted(trained, key=lambda index: -parameters[index].numel()):
            rank = min(range(world_size), key=loads.__getitem__)
            loads[rank] += parameters[index].numel()
            held[rank].append(index)
        for rank, indices in enumerate(held):
            own = tuple(sorted(indices))
            blocks.append(
                ParameterBlock(
                    number * world_size + rank,
                    rank,
                    number,
                    own,
                    tuple(parameters[index] for index in own),
                )
            )
    return blocks
