"""Checks of the optimizers of the module before training, and advice about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.agreement import raise_everywhere, require_same_list
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.parameter_server.user_optimizer import objection

# Entries that parameter groups of any optimizer may have, so they say nothing about its type.
_ALWAYS = {"params", "param_names", "lr", "initial_lr"}

_WAY_OUT = (
    "A run must resume with the optimizers with which it was saved. Use those, or start a new run "
    "from the weights: model = Model.load_from_checkpoint(path), then fit without ckpt_path"
)

_ONE_GROUP = (
    "All ranks form one group, so they exchange gradients at every step, and {} has no other model "
    "to average. On one host, group_size=1 makes every rank a group."
)

_STATISTICS = (
    "{} moves the weights away from the mean of the local models, whose running statistics {} has: "
    "a validation may show a much larger loss. Compute the statistics anew before you use the "
    "model, by torch.optim.swa_utils.update_bn(train_dataloader, model), or pass "
    "outer_momentum='auto', which moves the weights less, or use GroupNorm or LayerNorm."
)


def check_averaged(optimizers: Sequence[Optimizer], block_sync: BlockSync | None) -> None:
    """Raise ValueError for optimizers that a synchronous strategy does not support."""
    if block_sync is None:
        return
    for optimizer in optimizers:
        if problem := block_sync.objection(optimizer):
            raise ValueError(problem)


def check_served(optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError for optimizers that parameter servers do not support."""
    seen: set[Parameter] = set()
    for optimizer in optimizers:
        if problem := objection(optimizer):
            raise ValueError(problem)
        parameters = set(optimizer_parameters(optimizer))
        if parameters & seen:
            raise ValueError(
                "two optimizers share a parameter, but each parameter must belong to one "
                "optimizer, because one server updates it. Divide the parameters among them."
            )
        seen |= parameters


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


def log_advice(
    module: Module,
    optimizers: Sequence[Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> None:
    """Warn once about unfavourable settings of optimizers, and log values of ``"auto"``.

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
    for optimizer in optimizers:
        if gradient_sync is not None:
            warnings.append(gradient_sync.advice(optimizer))
        if block_sync is not None:
            choices.append(block_sync.chosen(optimizer, num_models))
            if num_models > 1:
                warnings.append(block_sync.advice(optimizer, num_models))
    # Optimizers of one type may get the same advice or, depending on their betas, different advice.
    for warning in filter(None, dict.fromkeys(warnings)):
        rank_zero_warn(warning)
    for choice in filter(None, dict.fromkeys(choices)):
        rank_zero_info(choice)


def has_statistics(layer: Module) -> bool:
    """Whether a layer follows its inputs by running statistics, which it uses in evaluation."""
    return isinstance(getattr(layer, "running_mean", None), Tensor)


def check_saved(
    checkpoint: Mapping[str, Any], optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Raise ValueError on every rank if a checkpoint was saved with other optimizers.

    A collective of the world: every rank must call it.
    """
    with raise_everywhere(device):
        check_saved_optimizers(checkpoint["optimizer_states"], optimizers)


def check_saved_optimizers(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> None:
    """Raise ValueError if saved states do not match the optimizers.

    A checkpoint does not contain the types of optimizers, so hyperparameters are compared.
    """
    if len(states) != len(optimizers):
        raise ValueError(
            f"the number of optimizers in the checkpoint is {len(states)}, but "
            f"configure_optimizers returns {len(optimizers)}. {_WAY_OUT}"
        )
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=True)):
        groups = state.get("param_groups")
        if not groups:
            continue  # an optimizer with its own format, which it checks itself
        if difference := _difference(groups, optimizer.param_groups):
            raise ValueError(
                f"optimizer {index} of the checkpoint does not match {type(optimizer).__name__} of "
                f"configure_optimizers: {difference}. {_WAY_OUT}"
            )


def _difference(
    saved: Sequence[Mapping[str, Any]], present: Sequence[Mapping[str, Any]]
) -> str | None:
    sizes, own_sizes = ([len(group["params"]) for group in groups] for groups in (saved, present))
    if sizes != own_sizes:
        return f"it has groups of {sizes} parameters instead of {own_sizes}"
    # torch gives all groups of an optimizer the same entries, so the first one shows its type.
    lacks = sorted(set(present[0]) - set(saved[0]) - _ALWAYS)
    others = sorted(set(saved[0]) - set(present[0]) - _ALWAYS)
    # A version of the same optimizer may add or remove hyperparameters. Other types do both.
    if lacks and others:
        return f"it has {', '.join(others)} instead of {', '.join(lacks)}"
    # Adam and AdamW have the same hyperparameters. The saved value would replace that of the user.
    decoupled = present[0].get("decoupled_weight_decay")
    if saved[0].get("decoupled_weight_decay", decoupled) != decoupled:
        return f"it has decoupled_weight_decay={not decoupled} instead of {decoupled}"
    return None
