"""Whether all ranks shuffle the training data in the same order, of which each takes its share."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DistributedSampler

from lightning_hier.comm.agreement import gather_json


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
