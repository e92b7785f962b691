"""Checks of the optimizers before training, and advice about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import require_same_list
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.comm.sharded_tensors import reshard_

_ONE_GROUP = (
    "All ranks form one group, so they exchange gradients at every step, and {} has no other model "
    "to average. On one host, group_size=1 makes every rank a group."
)

_ZERO = (
    "ZeroRedundancyOptimizer sends the parameters that it has stepped to other ranks at every "
    "step, and a rank has the state of its part alone, which blocks can't average or reset: use "
    "the optimizer inside it, or divide the module and its optimizer state by fully_shard"
)

_STATISTICS = (
    "{} moves the weights away from the mean of the local models, whose running statistics {} has: "
    "a validation may show a much larger loss. Compute the statistics anew before you use the "
    "model, by torch.optim.swa_utils.update_bn(train_dataloader, model), or pass "
    "a smaller outer_momentum, which moves the weights less, or use GroupNorm or LayerNorm."
)


def check_averaged(optimizers: Sequence[Optimizer], block_sync: BlockSync | None) -> None:
    """Raise ValueError for optimizers that a synchronous strategy does not support."""
    if block_sync is None:
        return
    for optimizer in optimizers:
        if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
            raise ValueError(_ZERO)
        if problem := block_sync.objection(optimizer):
            raise ValueError(problem)


def check_inside(module: Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError for optimizers that train parameters outside of the module."""
    reshard_(module)  # FSDP2 shows other tensors after a forward pass without a backward
    inside = set(module.parameters())
    for index, optimizer in enumerate(optimizers):
        trained = (p for p in optimizer_parameters(optimizer) if p.requires_grad)
        if outside := [tuple(p.shape) for p in trained if p not in inside]:
            raise ValueError(
                f"{type(optimizer).__name__} as optimizer {index} has {len(outside)} trainable "
                f"parameters that are not in the module, the first of shape {outside[0]}, which "
                "nothing would synchronise or save: make them parameters of the module, as in "
                "torch.nn.ModuleList([model, loss]), or leave them out of the optimizer"
            )


def require_same_optimizers(
    module: Module, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Check types, hyperparameters and parameters of the optimizers, in order, on all ranks.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming what differs and the ranks that have it.

    """
    names = {parameter: name for name, parameter in module.named_parameters()}
    entries = []
    for index, optimizer in enumerate(optimizers):
        entries.append(f"{type(optimizer).__name__} as optimizer {index}")
        for number, group in enumerate(optimizer.param_groups):
            where = f"in group {number} of optimizer {index}"
            entries += [
                f"{name}={_shown(value)} {where}"
                for name, value in sorted(group.items())
                if name != "params"
            ]
            entries += [
                f"{names.get(parameter, f'a parameter outside of the module at {i}')} {where}"
                for i, parameter in enumerate(group["params"])
            ]
    require_same_list(
        entries,
        device,
        "optimizers must have the same type, hyperparameters and parameters in the same order on "
        "all ranks",
        "The order of a set differs between processes: use that of the module, "
        "`[p for p in self.parameters() if p in chosen]`.",
    )


def _shown(value: Any) -> str:
    """A hyperparameter as text that is equal on all ranks if the value is."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    # The default text of other objects has an address.
    known = value is None or isinstance(value, (bool, int, float, str, tuple, list))
    return repr(value) if known else type(value).__name__


def advice(
    module: Module,
    optimizers: Sequence[Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> tuple[list[str], list[str]]:
    """Warnings about unfavourable settings of optimizers, and lines with the values of ``"auto"``.

    Args:
        module: module that is trained.
        optimizers: optimizers of the module.
        gradient_sync: synchronisation inside groups. None: a group has one worker.
        block_sync: synchronisation across groups.
        num_models: number of groups.

    """
    warnings: list[str | None] = []
    choices: list[str | None] = []
    if block_sync is not None and num_models == 1 and gradient_sync is not None:
        warnings.append(_ONE_GROUP.format(type(block_sync).__name__))
    if block_sync is not None and num_models > 1 and block_sync.leaves_mean:
        kinds = (type(layer).__name__ for layer in module.modules() if has_statistics(layer))
        if kind := next(kinds, None):
            warnings.append(_STATISTICS.format(type(block_sync).__name__, kind))
    if gradient_sync is not None:
        choices.append(gradient_sync.chosen(optimizers))
        gradient_sync = gradient_sync.suited(optimizers)
    for optimizer in optimizers:
        if gradient_sync is not None:
            warnings.append(gradient_sync.advice(optimizer))
        if block_sync is not None:
            choices.append(block_sync.chosen(optimizer, num_models))
            if num_models > 1:
                warnings.append(block_sync.advice(optimizer, num_models))
    # Optimizers of one type may get the same advice or, depending on their betas, different advice.
    return _once(warnings), _once(choices)


def _once(texts: Sequence[str | None]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text is not None]


def has_statistics(layer: Module) -> bool:
    """Whether a layer follows its inputs by running statistics, which it uses in evaluation."""
    return isinstance(getattr(layer, "running_mean", None), Tensor)
