"""What hooks of the user have written into the global model while the module showed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.model_block import ModelBlock


@torch.no_grad()
def go_on_from(
    written: Sequence[Tensor], blocks: Iterable[ModelBlock], models: LocalModels
) -> float:
    """Have blocks, and the other local models of this rank, begin anew from written tensors.

    Communicates nothing.

    Args:
        written: tensors of the module, which hold what was written.
        blocks: that have begun.
        models: of this rank, of which the first is in the module.

    Returns:
        The number of the tensors in the blocks and the sum of their squares, by which ranks can
        tell whether all have written the same.

    """
    values = [(tensor, tensor.data) for tensor in written]
    for _ in models.others():
        for tensor, value in values:
            tensor.copy_(value)
    squares, tensors = 0.0, set(written)
    for block in blocks:
        own = [tensor for tensor in block.members.parameters if tensor in tensors]
        if own:
            block.begin_from(tensors)
        # Counted too, since zeros may be what was written.
        squares += len(own) + sum(sum_of_squares(tensor.detach().reshape(-1)) for tensor in own)
    return squares
