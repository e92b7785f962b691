"""Checks of the optimizers of the module before training, and advice about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import zip_longest
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_where_different, raise_everywhere
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.parameter_server.updater import objection

Place = tuple[int, int, str]
"""Position of a parameter: index of its optimizer and of its group, and its name."""

# Entries in the parameter groups of all optimizers.
_ALWAYS = {"params", "param_names", "lr", "initial_lr"}

# Optimizers by the names of their arguments, which equal those of their saved hyperparameters.
_ARGUMENTS = {
    kind: set(signature(kind).parameters) - {"params"}
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}

_WAY_OUT = (
    "a run must resume with the optimizers with which it was saved. Use those, or start a new run "
    "from the weights: model = Model.load_from_checkpoint(path), then fit without ckpt_path"
)


def check_averaged(
    optimizers: Sequence[Optimizer], block_sync: BlockSync | None, virtual_workers: int
) -> None:
    """Raise ValueError for optimizers that a synchronous strategy does not support."""
    if virtual_workers > 1 and len(optimizers) > 1:
        # The block of one could end when the first workers have stepped the others too.
        raise ValueError(
            f"virtual_workers above 1 can't be combined with {len(optimizers)} optimizers: start a "
            "rank for each worker"
        )
    if block_sync is None:
        return
    for optimizer in optimizers:
        if problem := block_sync.objection(optimizer):
            raise ValueError(problem)


def check_served(optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError for optimizers that parameter servers do not support."""
    seen: set[int] = set()
    for optimizer in optimizers:
        if problem := objection(optimizer):
            raise ValueError(problem)
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if own & seen:
            raise ValueError(
                "two optimizers share a parameter, but each parameter must belong to one "
                "optimizer, because one server updates it. Divide the parameters among them."
            )
        seen |= own


def require_same_order(
    module: Module, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Raise ValueError on every rank unless optimizers list the same parameters in one order.

    A collective of the world: every rank must call it.
    """
    names = {own: name for name, own in module.named_parameters()}
    places = [
        (index, number, names.get(own, f"a tensor of shape {tuple(own.shape)}"))
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for own in group["params"]
    ]
    rows = gather_where_different(places, device, place="the comparison of optimizers") or ()
    check_order([[(one, group, name) for one, group, name in row] for row in rows])


def check_order(rows: Sequence[Sequence[Place]]) -> None:
    """Raise ValueError that names the first position at which the optimizers of two ranks differ.

    Args:
        rows: for each rank, all parameters of its optimizers in their order.

    """
    for rank, row in enumerate(rows):
        for number, (first, own) in enumerate(zip_longest(rows[0], row)):
            if own != first:
                raise ValueError(
                    "optimizers must list the same parameters in the same order on all ranks, "
                    "because servers identify a parameter by its position. "
                    f"Position {number} is {_named(first)} on rank 0, and {_named(own)} on rank "
                    f"{rank}. The order of a set differs between processes: use the order of the "
                    "module, `[p for p in self.parameters() if p in chosen]`"
                )


def _named(place: Place | None) -> str:
    if place is None:
        return "nothing more"
    optimizer, group, name = place
    return f"{name} (optimizer {optimizer}, group {group})"


def log_advice(
    optimizers: Sequence[Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> None:
    """Warn once about unfavourable settings of optimizers, and log values of ``"auto"``.

    Args:
        optimizers: optimizers of the module.
        gradient_sync: synchronisation inside groups. None: a group has one worker.
        block_sync: synchronisation across groups.
        num_models: number of groups.

    """
    warnings: list[str | None] = []
    choices: list[str | None] = []
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
    """Raise ValueError that names both, if saved states do not match the optimizers.

    A checkpoint does not contain the types of its optimizers, which follow from their
    hyperparameters.
    """
    if len(states) != len(optimizers):
        raise ValueError(
            f"the checkpoint has {_count(len(states), 'optimizer')} "
            f"({', '.join(_saved_type(_groups(state)) for state in states)}), but "
            f"configure_optimizers returns {len(optimizers)} "
            f"({', '.join(type(own).__name__ for own in optimizers)}): {_WAY_OUT}"
        )
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=True)):
        if differs := _difference(_groups(state), optimizer):
            which = "the optimizer" if len(optimizers) == 1 else f"optimizer {index}"
            raise ValueError(f"{which} of the checkpoint {differs}: {_WAY_OUT}")


def _difference(saved: Sequence[Mapping[str, Any]], optimizer: Optimizer) -> str | None:
    if not saved:
        return None  # an optimizer with its own format, which it checks itself
    present = type(optimizer).__name__
    if _is_other_type(saved[0], optimizer):
        return f"is {_saved_type(saved)}, but configure_optimizers returns {present}"
    sizes = [len(group["params"]) for group in saved]
    own_sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own_sizes:
        return (
            f"({_saved_type(saved)}) has groups of {_listed(sizes)} parameters, but that of "
            f"configure_optimizers ({present}) has groups of {_listed(own_sizes)}"
        )
    return None


def _is_other_type(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    kind = _torch_type(saved)
    own = next((base for base in type(optimizer).__mro__ if base in _ARGUMENTS), None)
    if kind is not None and own is not None:
        return kind is not own
    # A version of the same optimizer may add or remove hyperparameters. Other types have others.
    now = set(optimizer.param_groups[0])
    return bool(now - set(saved) - _ALWAYS) and bool(set(saved) - now - _ALWAYS)


def _torch_type(saved: Mapping[str, Any]) -> type[Optimizer] | None:
    """The optimizer of torch with these hyperparameters, or None."""
    fitting = [kind for kind, arguments in _ARGUMENTS.items() if arguments <= set(saved)]
    if not fitting:
        return None
    best = max(fitting, key=lambda kind: len(_ARGUMENTS[kind]))
    # AdamW has one more hyperparameter than its arguments, which is an argument of Adam only.
    if best is torch.optim.Adam and saved["decoupled_weight_decay"]:
        return torch.optim.AdamW
    return best


def _saved_type(saved: Sequence[Mapping[str, Any]]) -> str:
    kind = _torch_type(saved[0]) if saved else None
    if kind is not None:
        return kind.__name__
    names = sorted(set(saved[0]) - _ALWAYS) if saved else []
    return f"an optimizer with {', '.join(names)}" if names else "an optimizer of another package"


def _groups(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    groups: Sequence[Mapping[str, Any]] = state.get("param_groups", ())
    return groups


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes))
