"""Checks of the optimizers of the module before training, and advice about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.loop.optimizer_checks import advice
from lightning_hier.parameter_server.updater import objection

# Entries that parameter groups of any optimizer may have, so they say nothing about its type.
_ALWAYS = {"params", "param_names", "lr", "initial_lr"}

_WAY_OUT = (
    "A run must resume with the optimizers with which it was saved. Use those, or start a new run "
    "from the weights: model = Model.load_from_checkpoint(path), then fit without ckpt_path"
)


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


def log_advice(*of_run: Any) -> None:
    """Show what :func:`~lightning_hier.loop.optimizer_checks.advice` says, on one rank."""
    warnings, choices = advice(*of_run)
    for warning in warnings:
        rank_zero_warn(warning)
    for choice in choices:
        rank_zero_info(choice)
