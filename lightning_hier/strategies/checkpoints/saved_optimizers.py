"""Whether the optimizers of a checkpoint are those of the run that resumes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch.optim import Optimizer

# Entries of every parameter group, whatever the optimizer.
_ALWAYS = {"params", "param_names", "lr", "initial_lr"}

# By the names of their arguments, which are those of the hyperparameters that they save.
_ARGUMENTS = {
    kind: set(signature(kind).parameters) - {"params"}
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}

_WAY_OUT = (
    "a run resumes with the optimizers that it was saved with. Resume with those, or start a new "
    "run from the weights alone: model = Model.load_from_checkpoint(path), then fit without "
    "ckpt_path"
)


def check_saved_optimizers(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> None:
    """Check that saved states can be loaded into the optimizers, before any is loaded.

    A checkpoint does not tell the types of its optimizers; their hyperparameters do.

    Raises:
        ValueError: they can't; names the saved and the present optimizers.

    """
    if len(states) != len(optimizers):
        raise ValueError(
            f"the checkpoint has {_count(len(states), 'optimizer')} "
            f"({', '.join(_saved_type(_groups(state)) for state in states)}), and "
            f"configure_optimizers makes {len(optimizers)} "
            f"({', '.join(type(own).__name__ for own in optimizers)}): {_WAY_OUT}"
        )
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=True)):
        if differs := _difference(_groups(state), optimizer):
            which = "the optimizer" if len(optimizers) == 1 else f"optimizer {index}"
            raise ValueError(f"{which} of the checkpoint {differs}: {_WAY_OUT}")


def _difference(saved: Sequence[Mapping[str, Any]], optimizer: Optimizer) -> str | None:
    if not saved:
        return None  # an optimizer with a format of its own, which it alone can judge
    present = type(optimizer).__name__
    if _is_other_type(saved[0], optimizer):
        return f"is {_saved_type(saved)}, and configure_optimizers makes {present} now"
    sizes = [len(group["params"]) for group in saved]
    own_sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own_sizes:
        return (
            f"({_saved_type(saved)}) has groups of {_listed(sizes)} parameters, and that of "
            f"configure_optimizers ({present}) has groups of {_listed(own_sizes)}"
        )
    return None


def _is_other_type(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    kind = _torch_type(saved)
    own = next((base for base in type(optimizer).__mro__ if base in _ARGUMENTS), None)
    if kind is not None and own is not None:
        return kind is not own
    # Other versions of an optimizer have more or fewer hyperparameters, others have different ones.
    now = set(optimizer.param_groups[0])
    return bool(now - set(saved) - _ALWAYS) and bool(set(saved) - now - _ALWAYS)


def _torch_type(saved: Mapping[str, Any]) -> type[Optimizer] | None:
    """Which of torch's optimizers has saved these hyperparameters; None: none of them."""
    fitting = [kind for kind, arguments in _ARGUMENTS.items() if arguments <= set(saved)]
    if not fitting:
        return None
    best = max(fitting, key=lambda kind: len(_ARGUMENTS[kind]))
    # AdamW is an Adam with one more hyperparameter, which is an argument of Adam alone.
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
