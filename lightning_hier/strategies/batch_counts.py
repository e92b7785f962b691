"""Ranks with different numbers of batches: what can't be trained, and what of a Trainer with it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, Timer

UnevenBatches = Literal["error", "join"]
"""Ranks with different numbers of batches: a mistake, or those that run out join the others."""


def uneven_problem(counts: Sequence[float], of: str = "rank") -> str | None:
    """What to object to where all need the same number of batches, or None.

    Args:
        counts: of each, in one epoch; inf where the data have no length.
        of: what has batches, in the singular.

    """
    if len(set(counts)) == 1:
        return None
    return (
        f"the {of}s have different numbers of training batches: {_by_count(counts, of)}. Give "
        f"every {of} the same number (drop_last, a DistributedSampler, or limit_train_batches)"
    )


def join_problem(
    counts: Sequence[float], *, group_size: int, warmup_steps: int, accumulated: int
) -> str | None:
    """What to object to where ranks that run out join the others, or None.

    Args:
        counts: as in :func:`uneven_problem`.
        group_size: ranks of a group.
        warmup_steps: steps of the warm-up that are still to come.
        accumulated: batches that make a step.

    """
    groups = [counts[i : i + group_size] for i in range(0, len(counts), group_size)]
    if any(len(set(group)) > 1 for group in groups):
        return (
            "the ranks of a group have different numbers of training batches: "
            f"{_by_count(counts)}, in groups of {group_size}. uneven_batches='join' lets groups "
            "run out that have fewer batches than others; the ranks inside a group meet at every "
            "step and need the same number"
        )
    fewest = math.ceil(min(counts) / accumulated) if min(counts) < math.inf else math.inf
    if len(set(counts)) > 1 and warmup_steps > fewest:
        return (
            f"a warm-up of {warmup_steps} steps goes on when the first ranks run out of batches, "
            f"after {fewest} steps: {_by_count(counts)}. All ranks meet at every step of it: "
            f"set warmup_steps to at most {fewest}"
        )
    return None


def join_trainer_problem(trainer: pl.Trainer) -> str | None:
    """What of a Trainer has all ranks meet in the middle of an epoch or count steps, or None."""
    found = []
    settings: Any = trainer  # some are not among its annotations
    if not settings.fast_dev_run and (trainer.max_steps != -1 or trainer.min_steps is not None):
        found.append("max_steps and min_steps (ranks take different numbers: use max_epochs)")
    interval = settings._val_check_time_interval or trainer.val_check_interval
    if trainer.enable_validation and (interval != 1.0 or trainer.check_val_every_n_epoch is None):
        found.append("validation in the middle of an epoch (leave out val_check_interval)")
    for callback in settings.callbacks:
        if isinstance(callback, Timer) and callback._interval == "step":
            found.append("max_time (use callbacks=[Timer(..., interval='epoch')])")
        if isinstance(callback, ModelCheckpoint) and (
            callback._every_n_train_steps > 0 or callback._train_time_interval is not None
        ):
            found.append(
                "ModelCheckpoint in the middle of an epoch (leave out every_n_train_steps and "
                "train_time_interval)"
            )
    if not found:
        return None
    return (
        "with uneven_batches='join' all ranks meet at the ends of epochs alone, so it can't be "
        f"combined with {'; '.join(found)}"
    )


def _by_count(counts: Sequence[float], of: str = "rank") -> str:
    holders: defaultdict[float, list[int]] = defaultdict(list)
    for rank, count in enumerate(counts):
        holders[count].append(rank)
    return "; ".join(
        f"{'an unknown number' if count == math.inf else int(count)} on "
        f"{of}{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        for count, ranks in holders.items()
    )
