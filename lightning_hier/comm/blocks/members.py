"""Which tensors of a model belong to the block of which optimizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.broadcast import is_averaged


@dataclass
class Members:
    """The tensors that one block synchronises.

    Attributes:
        parameters: trainable parameters; they go through the block filter.
        float_buffers: floating-point buffers such as BatchNorm statistics; they are averaged.
            Block momentum on statistics would be wrong: its look-ahead can make a variance
            negative.
        other_buffers: integer and boolean buffers, and those that have no mean; kept equal to those
            of the first healthy group.

    """

    parameters: list[Parameter]
    float_buffers: list[Tensor]
    other_buffers: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.parameters, *self.float_buffers, *self.other_buffers]


def divide(
    module: Module,
    optimizers: Sequence[Optimizer],
    trainable: Collection[Parameter],
    buffers: Mapping[Tensor, str],
    not_averaged: Collection[str] = (),
) -> list[Members]:
    """Give every trainable parameter and each of the buffers to exactly one optimizer's block.

    What counts as trainable is said by ``trainable`` and not by ``requires_grad``, which a module
    with several optimizers switches off and on while it trains. Likewise the names of ``buffers``
    are told: what a module makes in its first forward pass may differ between ranks, and is left to
    each, as by DDP. Floating-point buffers with a name among ``not_averaged`` are kept equal.

    A parameter belongs to the first optimizer that holds it; buffers, and trainable parameters
    that no optimizer holds, belong to the first optimizer. Tied weights count once. The order is
    that of the module, hence the same on all ranks.
    """
    owners: dict[int, int] = {}
    for index, optimizer in enumerate(optimizers):
        for parameter in optimizer_parameters(optimizer):
            owners.setdefault(id(parameter), index)
    members = [Members([], [], []) for _ in optimizers]
    for parameter in module.parameters():
        if parameter in trainable:
            members[owners.get(id(parameter), 0)].parameters.append(parameter)
    if members:
        for buffer, name in buffers.items():
            averaged = is_averaged(buffer) and name not in not_averaged
            kind = members[0].float_buffers if averaged else members[0].other_buffers
            kind.append(buffer)
    return members


def optimizer_parameters(optimizer: Optimizer) -> list[Parameter]:
    """Parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
