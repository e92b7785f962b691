"""Checks of the training data of all ranks: numbers of batches, and the order of samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DistributedSampler

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.strategies.virtual_workers.checks import loaders_problem
from lightning_hier.strategies.virtual_workers.data import batch_counts

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession

UnevenBatches = Literal["error", "join"]
"""Ranks with different numbers of batches: a mistake, or those that run out join the others."""


def gather_counts(own: Sequence[float], device: torch.device) -> list[float]:
    """Return the numbers of batches of all workers, in order of rank. A collective of the world."""
    counts = gather_json(list(own), device, place="the comparison of batch counts")
    return [one for of_rank in counts for one in of_rank]


def check_data(trainer: pl.Trainer) -> None:
    """Check the order of samples and the numbers of batches. A collective of the world.

    Raises:
        ValueError: on every rank, if ranks have different seeds or numbers of batches.

    """
    require_same_shuffle(trainer)
    counts = gather_counts([trainer.num_training_batches], trainer.strategy.root_device)
    if problem := uneven_problem(counts):
        raise ValueError(problem)


def check_session_data(session: FitSession, *, join: bool) -> None:
    """Check the training data for a synchronous strategy. A collective of the world.

    Args:
        session: of the fit.
        join: whether ranks that have run out of batches join the others.

    Raises:
        ValueError: on every rank, if these numbers can't be trained.

    """
    trainer, device = session.trainer, session.communicators.device
    require_same_shuffle(trainer)
    size, groups = session.worker_layout.sizes
    virtual = len(session.workers) > 1
    if virtual:
        raise_everywhere(loaders_problem(trainer), device)
    own = batch_counts(trainer) if virtual else [trainer.num_training_batches]
    counts = gather_counts(own, device)
    if join:
        warmup_steps = int(session.settings.warmup_steps) if session.warming else 0
        accumulated = trainer.accumulate_grad_batches
        problem = join_problem(
            counts, group_size=size, warmup_steps=warmup_steps, accumulated=accumulated
        )
    else:
        problem = uneven_problem(counts, "worker" if virtual else "rank")
        if problem is not None and groups > 1 and not virtual:
            problem = f"{problem}, or pass uneven_batches='join'"
    if problem is not None:
        raise ValueError(problem)


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


def require_same_shuffle(trainer: pl.Trainer) -> None:
    """Check that samplers which divide shuffled data among ranks have the same seed on all ranks.

    Lightning gives its samplers the seed of the variable PL_GLOBAL_SEED, which ``seed_everything``
    sets, or 0. The samplers are compared, not the variable: ranks may draw other numbers otherwise.
    A collective of the world: every rank must call it once its data are there.

    Raises:
        ValueError: on every rank, with the seeds of all ranks.

    """
    by_rank = gather_json(_seeds(trainer.train_dataloader), trainer.strategy.root_device)
    if all(seeds == by_rank[0] for seeds in by_rank):
        return
    listed = "; ".join(
        f"{', '.join(map(str, seeds)) or 'none'} on rank {rank}"
        for rank, seeds in enumerate(by_rank)
    )
    raise ValueError(
        "all ranks must shuffle the training data with the same seed, as each takes its share of "
        f"that order, but the seeds are {listed}: some samples would be trained twice and others "
        "never. Call seed_everything with the same number on all ranks, or set PL_GLOBAL_SEED; to "
        "draw other random numbers on each rank call torch.manual_seed(...) in on_train_start. Or "
        "divide the data yourself, with Trainer(use_distributed_sampler=False)"
    )


def _seeds(data: Any) -> list[int]:
    loaders = CombinedLoader(data).flattened
    samplers = [getattr(own.batch_sampler, "sampler", own.sampler) for own in loaders if _has(own)]
    return [sampler.seed for sampler in samplers if _shuffles(sampler)]


def _has(loader: object) -> bool:
    return hasattr(loader, "batch_sampler") and hasattr(loader, "sampler")


def _shuffles(sampler: object) -> bool:
    # A wrapped sampler draws the order itself, from generators that have the seed as well.
    wrapped = isinstance(sampler, DistributedSamplerWrapper)
    return isinstance(sampler, DistributedSampler) and (sampler.shuffle or wrapped)
