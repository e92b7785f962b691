"""Checks of the training data of all ranks: numbers of batches, seeds and parts of samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DistributedSampler

from lightning_hier.callbacks.packages import both
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health import SAME_BATCHES
from lightning_hier.comm.progress_record import named_ranks, ranks_by_value

_PARTS = (
    "Leave the sampler to Lightning, or pass "
    "DistributedSampler(data, **trainer.strategy.distributed_sampler_kwargs)"
)


def check_data(trainer: pl.Trainer) -> list[float]:
    """Check that all ranks shuffle with the same seed, and gather the numbers of their batches.

    A collective of the world: every rank must call it after it has loaded its data.

    Args:
        trainer: Trainer that fits.

    Returns:
        Batches of all ranks in one epoch, in order; inf if the data have no length.

    Raises:
        ValueError: on every rank, if ranks have different seeds.

    """
    here = {"seeds": _seeds(trainer.train_dataloader), "count": trainer.num_training_batches}
    # Python's json writes inf, which standard JSON does not have, and reads it back.
    rows = gather_json(here, trainer.strategy.root_device, place="the comparison of batch counts")
    check_seeds([row["seeds"] for row in rows])
    return [row["count"] for row in rows]


def check_even(counts: Sequence[float]) -> None:
    """Raise ValueError unless all ranks have the same number of batches in one epoch.

    The number is inf if the data have no length.
    """
    if len(set(counts)) > 1:
        raise ValueError(
            f"the ranks have different numbers of training batches: {_by_count(counts)}. Give "
            f"every rank the same number ({SAME_BATCHES})"
        )


def _by_count(counts: Sequence[float]) -> str:
    return "; ".join(
        f"{'an unknown number' if count == math.inf else int(count)} on {named_ranks(ranks)}"
        for count, ranks in ranks_by_value(counts).items()
    )


def check_seeds(by_rank: Sequence[Sequence[int]]) -> None:
    """Raise ValueError if samplers that divide shuffled data among ranks have different seeds.

    The seed of Lightning's samplers is the variable PL_GLOBAL_SEED, which ``seed_everything`` sets,
    or 0. The samplers are compared and not the variable, because other random numbers may differ.
    """
    if all(seeds == by_rank[0] for seeds in by_rank):
        return
    listed = "; ".join(
        f"{', '.join(map(str, seeds)) or 'none'} on rank {rank}"
        for rank, seeds in enumerate(by_rank)
    )
    raise ValueError(
        "all ranks must shuffle the training data with the same seed, because each uses its part "
        f"of one order, but the seeds are {listed}: some samples would be trained twice and others "
        "never. Call seed_everything with the same number on all ranks, or set PL_GLOBAL_SEED. For "
        "different random numbers on each rank, call torch.manual_seed(...) in on_train_start. Or "
        "divide the data yourself, with Trainer(use_distributed_sampler=False)"
    )


def check_parts(trainer: pl.Trainer) -> None:
    """Check that samplers divide the training data among the ranks that need different batches.

    Only a DistributedSampler can be checked: others do not state which part of the data they use.
    A collective of the world: every rank must call it after it has loaded its data.

    Raises:
        ValueError: on every rank, if ranks that must train on the same batches use different parts.

    """
    needed = trainer.strategy.distributed_sampler_kwargs  # type: ignore[attr-defined]
    samplers = (s for s in _samplers(trainer.train_dataloader) if isinstance(s, DistributedSampler))
    here = {
        "needed": [needed["num_replicas"], needed["rank"]],
        "used": [[sampler.num_replicas, sampler.rank] for sampler in samplers],
    }
    rows = gather_json(here, trainer.strategy.root_device, place="the comparison of samplers")
    # The first rank that needs each part. Tensor-parallel ranks need the same one.
    first: dict[tuple[int, int], int] = {}
    for rank, row in enumerate(rows):
        same = first.setdefault(tuple(row["needed"]), rank)
        if row["used"] != rows[same]["used"]:
            raise ValueError(
                f"ranks {same} and {rank} are tensor-parallel and must train on the same batches, "
                f"but their samplers use different parts of the data. {_PARTS}"
            )
    # Sorted, because any assignment of the parts to these ranks is valid. Not strict, because ranks
    # may have different numbers of samplers.
    for parts in zip(*(rows[rank]["used"] for rank in first.values()), strict=False):
        if sorted(map(tuple, parts)) != sorted(first):
            rank_zero_warn(
                f"{len(first)} ranks need different batches, but a DistributedSampler divides the "
                f"training data into {parts[0][0]} parts: some of these ranks train on the same "
                f"samples, or some samples are never used, unless their data sets differ. {_PARTS}"
            )


def _samplers(data: Any) -> list[Any]:
    # With a batch sampler of the user, `loader.sampler` is a default of torch that draws nothing.
    return [
        getattr(loader.batch_sampler, "sampler", loader.sampler)
        for loader in CombinedLoader(data).flattened
        if hasattr(loader, "batch_sampler") and hasattr(loader, "sampler")
    ]


def _seeds(data: Any) -> list[int]:
    return [sampler.seed for sampler in _samplers(data) if _shuffles(sampler)]


def _shuffles(sampler: object) -> bool:
    # A wrapped sampler draws the order itself, from generators with the same seed.
    wrapped = isinstance(sampler, both(DistributedSamplerWrapper))
    return isinstance(sampler, DistributedSampler) and (sampler.shuffle or wrapped)
