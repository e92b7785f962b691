"""Mistakes with parameter servers that are found before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, LearningRateFinder
from lightning.pytorch.strategies import ParallelStrategy
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_where_different
from lightning_hier.parameter_server.updater import objection

Place = tuple[int, int, str]
"""A parameter: index of its optimizer, of its group there, and its name in the module."""

# What parameter servers add to a checkpoint.
SECTION = "lightning_hier_servers"

_RESUMES = (
    "training goes on from the servers' parameters and optimizer state. Gradients that were under "
    "way when it was written are not in it."
)
_TAKES_OVER = (
    "it was not saved by a strategy with parameter servers. The servers begin with its model and "
    "its optimizer states; steps are counted from 0, so warmup_steps begin again. State of another "
    "strategy (block momentum, residuals, random numbers, the place in the data) is not used."
)


def resumes(checkpoint: Mapping[str, Any]) -> str:
    """For people: what parameter servers take from a checkpoint."""
    return _RESUMES if SECTION in checkpoint else _TAKES_OVER


def saved_steps(trainer: pl.Trainer, optimizers: Sequence[Optimizer]) -> list[int]:
    """Steps of each optimizer before this fit: none, unless parameter servers have saved them.

    Of other optimizers than the saved ones it is the fewest steps that any of those has made.
    """
    saved = trainer._checkpoint_connector._loaded_checkpoint.get(SECTION, {}).get("steps", [])
    same = len(saved) == len(optimizers)
    return list(saved) if same else [min(saved, default=0)] * len(optimizers)


def check_workers(virtual_workers: int) -> None:
    """Check the number of virtual workers.

    Raises:
        ValueError: several.

    """
    if virtual_workers != 1:
        raise ValueError(
            f"virtual_workers must be 1 with parameter servers, got {virtual_workers}: only the "
            "synchronous strategies have a rank play several workers. Start a rank for each."
        )


def check_grace(grace_s: float) -> None:
    """Check the time for which a rank may be unreachable.

    Raises:
        ValueError: it is no positive, finite number of seconds.

    """
    number = isinstance(grace_s, (int, float)) and not isinstance(grace_s, bool)
    if not number or not 0 < grace_s < math.inf:
        raise ValueError(f"grace_s must be a positive number of seconds, got {grace_s!r}")


def strategy_problem(strategy: ParallelStrategy) -> str | None:
    """What about the strategy's settings can't be combined with parameter servers, or None."""
    if strategy._layer_sync is not None:
        return (
            "sync_batchnorm=True can't be combined with parameter servers: every batch would wait "
            "for all ranks. Leave it out: statistics are averaged when the model is looked at."
        )
    return None


def callback_problem(trainer: pl.Trainer) -> str | None:
    """What about the Trainer's callbacks can't be combined with parameter servers, or None."""
    callbacks: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    # Tuner.lr_find has one that ends its fit with the search.
    if any(isinstance(own, LearningRateFinder) and not own._early_exit for own in callbacks):
        return (
            "LearningRateFinder can't be combined with parameter servers: they would go on from "
            "what the search has made of the model. Leave it out, and call "
            "Tuner(trainer).lr_find(model, data) before fit."
        )
    return None


def optimizer_problem(optimizers: Sequence[Optimizer]) -> str | None:
    """What about the optimizers can't be combined with parameter servers, or None."""
    seen: set[int] = set()
    for optimizer in optimizers:
        problem = objection(optimizer)
        if problem is not None:
            return problem
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if own & seen:
            return (
                "two optimizers share a parameter, which can't be: each parameter lies on one "
                "server, with one optimizer. Divide the parameters among the optimizers."
            )
        seen |= own
    return None


def require_same_order(
    module: Module, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    """Check that optimizers list the same parameters in the same order on all ranks.

    A collective of the world: every rank must call it.

    Raises:
        ValueError: on every rank, naming the first place that differs.

    """
    names = {own: name for name, own in module.named_parameters()}
    places = [
        (index, number, names.get(own, f"a tensor of shape {tuple(own.shape)}"))
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for own in group["params"]
    ]
    rows = gather_where_different(places, device, place="the comparison of optimizers") or ()
    problem = order_problem([[(one, group, name) for one, group, name in row] for row in rows])
    if problem is not None:
        raise ValueError(problem)


def order_problem(rows: Sequence[Sequence[Place]]) -> str | None:
    """Name the first place at which the optimizers of two ranks differ, or None.

    Args:
        rows: for each rank, all parameters of its optimizers in their order.

    """
    for rank, row in enumerate(rows):
        for number, (first, own) in enumerate(zip_longest(rows[0], row)):
            if own != first:
                return (
                    "optimizers must list the same parameters in the same order on all ranks, "
                    "since servers identify a parameter by its place. "
                    f"At place {number} is {_named(first)} on rank 0, and {_named(own)} on rank "
                    f"{rank}. A set has another order in every process: take "
                    "`[p for p in self.parameters() if p in chosen]`, the order of the module"
                )
    return None


def _named(place: Place | None) -> str:
    if place is None:
        return "nothing more"
    optimizer, group, name = place
    return f"{name} (optimizer {optimizer}, group {group})"
