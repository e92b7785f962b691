"""Finds out whether a run resumes exactly, and says in one line why not.

In the middle of an epoch, two kinds of data can be restored: loaders with a state, and map-style
DataLoaders whose order follows from a seed and the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch import LightningModule
from lightning_utilities.core.overrides import is_overridden
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_hier.callbacks.packages import both

_FIXED = "a DataLoader of map-style data with Lightning's default sampler"
_TWO_KINDS = f"use loaders with a state (torchdata's StatefulDataLoader), or {_FIXED}"
_WRAPPED = (
    "Lightning has wrapped the sampler of a loader with a state, which does not save its order: "
    "pass sampler=DistributedSampler(data, **trainer.strategy.distributed_sampler_kwargs)"
)
# They draw from the random state of the process unless they have a generator of their own.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_KNOWN = {BatchSampler, SequentialSampler, *_DRAWING}


def report(reasons: Sequence[str]) -> None:
    """Say in one line on rank 0 whether a run resumes exactly, and otherwise why not.

    Args:
        reasons: reasons with the way round.

    """
    if reasons:
        rank_zero_warn(f"this resume is not exact: {'; '.join(dict.fromkeys(reasons))}.")
    else:
        rank_zero_info("Resuming exactly, with the state of every rank.")


def has_state(loader: Any) -> bool:
    """Whether a loader saves its own position."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def of_data(
    trainer: Any, fetcher: Any, loops: Mapping[str, Any], states: Sequence[Any]
) -> list[str]:
    """Reasons why the data of this rank do not continue exactly. Does not communicate.

    Args:
        trainer: Trainer that resumes.
        fetcher: fetcher of its training data.
        loops: position in Lightning's loops.
        states: state of each loader in the saved run, or None.

    """
    loaders, within = fetcher.combined_loader.flattened, loops["batches"] and not loops["last"]
    reasons = []
    if [has_state(loader) for loader in loaders] != [state is not None for state in states]:
        reasons.append("the saved run had other data loaders: use loaders of the same kind")
    for loader in loaders:
        reasons += _of_stateful(loader) if has_state(loader) else _of_plain(loader)
    if within:
        reasons += _within_an_epoch(loaders, fetcher, loops["batches"])
    if trainer.reload_dataloaders_every_n_epochs:
        reasons.append(f"the data loaders are reloaded: {_TWO_KINDS}, created once")
    return reasons


def of_trainer(trainer: Any, loops: Mapping[str, Any]) -> list[str]:
    """Reasons why schedules and hooks do not continue exactly within an epoch."""
    if not loops["batches"]:
        return []
    reasons = []
    if any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
        reasons.append(
            "ReduceLROnPlateau may follow a mean over the epoch, which Lightning does not "
            "save: save at the end of an epoch"
        )
    module = trainer.lightning_module
    parent = next(kind for kind in both(LightningModule) if isinstance(module, kind))
    if loops["hook"] and is_overridden("on_train_batch_end", module, parent):
        reasons.append(
            "the checkpoint was saved before on_train_batch_end of the module: change state in "
            "that hook of a callback, which is called before ModelCheckpoint saves"
        )
    if is_overridden("on_train_epoch_start", module, parent):
        reasons.append(
            "Lightning does not call on_train_epoch_start of the module again in an epoch that "
            "goes on: save at the end of an epoch"
        )
    return reasons


def _within_an_epoch(loaders: Sequence[Any], fetcher: Any, used: int) -> list[str]:
    """Reasons that hold in the middle of an epoch only."""
    if not hasattr(fetcher, "prefetch_batches"):
        return ["training_step reads from a dataloader_iter: let it take a batch"]
    with_state = [has_state(loader) for loader in loaders]
    if all(with_state):
        return []
    if any(with_state):
        return [f"some data loaders have a state and others have none: {_TWO_KINDS}"]
    reasons = []
    for loader in loaders:
        if not isinstance(loader, DataLoader):
            reasons.append(f"{type(loader).__name__} is not a DataLoader: {_TWO_KINDS}")
        elif isinstance(loader.dataset, IterableDataset):
            reasons.append(f"the training data are iterable: {_TWO_KINDS}")
        elif sized_len(loader) is None:
            reasons.append(f"a data loader has no length: {_TWO_KINDS}")
        elif any(isinstance(sampler, _DRAWING) for sampler in _samplers(loader)):
            reasons.append(f"the global random state determines the order of data: use {_FIXED}")
    if reasons:
        return reasons
    if min(map(len, loaders)) < used and any(loader.num_workers for loader in loaders):
        reasons.append(
            "a data loader has ended in this epoch, so that one may have begun in it, whose "
            "processes then draw other random numbers: use num_workers=0 if they draw any"
        )
    if fetcher.length < used:
        reasons.append(
            f"the checkpoint was saved after {used} batches of an epoch, but the training data "
            f"have only {fetcher.length} now: use the data, the batch size and the "
            "limit_train_batches of the saved run"
        )
    return reasons


def _of_stateful(loader: Any) -> list[str]:
    """Reasons that hold at the end of an epoch, too."""
    reasons = []
    if getattr(loader, "num_workers", 0):
        reasons.append(
            "random numbers in the processes of a loader with a state start again: use "
            "num_workers=0 if they draw any"
        )
    if isinstance(loader, DataLoader) and any(map(_is_wrapper, _samplers(loader))):
        reasons.append(_WRAPPED)
    return reasons


def _of_plain(loader: Any) -> list[str]:
    """As :func:`_of_stateful`, for a loader without a state."""
    if not isinstance(loader, DataLoader):
        return []
    reasons = []
    samplers = list(_samplers(loader))
    if any(getattr(part, "generator", None) is not None for part in (loader, *samplers)):
        reasons.append(f"a data loader has a generator, whose state is not saved: use {_FIXED}")
    if loader.persistent_workers:
        reasons.append(
            "persistent workers of a data loader keep random states that are not saved: use "
            "persistent_workers=False if they draw random numbers"
        )
    for sampler in samplers:
        # Not their subclasses, which may have a state of their own.
        known = type(sampler) in _KNOWN or isinstance(sampler, Sequence)
        if not known and not hasattr(sampler, "set_epoch"):
            reasons.append(
                f"the order of {type(sampler).__name__} may not follow from the epoch: give it "
                "set_epoch(epoch), or use a loader with a state"
            )
    return reasons


def _samplers(loader: DataLoader[Any]) -> Iterator[Any]:
    """The samplers of a loader, from the outside in."""
    if isinstance(loader.dataset, IterableDataset):
        return
    # Not by truth, which would ask a sampler without a length for its length.
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while sampler is not None:
        yield sampler
        wrapped = _is_wrapper(sampler)
        sampler = sampler.dataset._sampler if wrapped else getattr(sampler, "sampler", None)


def _is_wrapper(sampler: Any) -> bool:
    """Whether Lightning has put a sampler around another one, to divide the data among ranks."""
    return isinstance(sampler, both(DistributedSamplerWrapper))
