"""Names of Lightning and torch that neither documents, and that this package uses all the same.

A release may remove any of them. All of them are listed here, each with its use, so that a new
release is checked in one place: tests compare this list with the source, with the installed
versions and with ``docs/compatibility.md``. A Trainer that lacks one gets one error before
training, in place of an ``AttributeError`` in the middle of it; objects that are only made in
training are checked where they are used. None of them is needed to import the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import lightning
import lightning.pytorch as pl
import torch

_ABSENT = object()

OF_TRAINER: Mapping[str, str] = {
    "_accelerator_connector._layer_sync": "refuses sync_batchnorm with virtual workers",
    "_accelerator_connector.cluster_environment": "asks SLURM to requeue a job",
    "_checkpoint_connector._loaded_checkpoint": "goes on with the steps that servers have saved",
    "_logger_connector.should_update_logs": "logs when Lightning logs",
    "_results": "has Lightning log what each virtual worker has made",
    "_signal_connector._sigterm_notifier_fn": "replaced: stops all ranks at one synchronisation",
    "_signal_connector._slurm_sigusr_handler_fn": "replaced: saves and requeues at one step",
    "_signal_connector.received_sigterm": "has the loop stop after the step agreed on",
    "_val_check_time_interval": "refuses validation by the clock",
    "fit_loop._combined_loader": "notes where an epoch's data begin",
    "fit_loop._data_source": "has the module make a loader for each virtual worker",
    "fit_loop._should_accumulate": "ends the step of several virtual workers",
    "fit_loop._skip_backward": "notes an epoch of StochasticWeightAveraging without steps",
    "fit_loop.epoch_loop._batches_that_stepped": "logs under Lightning's own step",
    "fit_loop.epoch_loop._broadcast_sigterm_tensor": (
        "replaced: nothing crosses a tier between two synchronisations"
    ),
    "fit_loop.epoch_loop._should_accumulate": "saves gradients of a step that is accumulated",
    "fit_loop.epoch_loop.automatic_optimization._make_closure": "replaced: virtual workers",
    "fit_loop.epoch_loop.automatic_optimization.run": "replaced: virtual workers",
    "fit_loop.epoch_loop.manual_optimization.run": "replaced: virtual workers",
    "fit_loop.epoch_loop.on_advance_end": "replaced: virtual workers",
    "fit_loop.epoch_loop.on_run_start": "replaced: resumes exactly within an epoch",
    "fit_loop.epoch_loop.reset": "replaced: resumes exactly within an epoch",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end": (
        "replaced: validation draws no random numbers of training"
    ),
    "fit_loop.epoch_loop.val_loop.run": "replaced: validation draws no random numbers of training",
    "fit_loop.reset_restart_stage": "resumes exactly at an epoch's end",
    "fit_loop.restarted_mid_epoch": "resumes exactly at an epoch's end",
    "fit_loop.setup_data": "replaced: resumes exactly within an epoch",
}
"""Below a Trainer; replaced methods of Lightning's loops count, whatever their name."""

OF_MODULES: Mapping[str, Mapping[str, str]] = {
    "lightning.fabric.utilities.data": {
        "_auto_add_worker_init_fn": "virtual workers: seeds each one's data loader",
        "_set_sampler_epoch": "virtual workers: shuffles each one's data anew",
    },
    "lightning.fabric.utilities.distributed": {
        "_DatasetSamplerWrapper": "virtual workers: divides the data of a sampler of the user",
    },
    "lightning.pytorch.loops.fetchers": {
        "_DataLoaderIterDataFetcher": "leaves the place in the data to a step that takes them",
    },
    "lightning.pytorch.trainer.connectors.data_connector": {
        "_parse_num_batches": "virtual workers: counts each one's batches",
        "_request_dataloader": "virtual workers: has the module make each one's loader",
    },
    "lightning.pytorch.utilities.combined_loader": {
        "_shutdown_workers_and_reset_iterator": "virtual workers: ends their loaders' processes",
    },
    "torch": {
        "_foreach_copy_": "copies many tensors in one call",
        "_foreach_mul_": "scales many tensors in one call",
        "_foreach_norm": "virtual workers: notes writes into the parameters",
    },
    "torch.autograd.profiler": {
        "_is_profiler_enabled": "names ranges in traces only while a profiler runs",
    },
    "torch.distributed.distributed_c10d": {
        "_get_default_group": "names the world's process group",
        "_get_default_store": "notes how far each rank is, for errors that name ranks",
    },
    "torch.nn.modules.batchnorm": {
        "_BatchNorm": "unfreezes the statistics of layers that a saved run had unfrozen",
    },
}
"""In modules; checked before training as well."""

OF_INSTANCES: Mapping[str, Mapping[str, str]] = {
    "lightning.fabric.utilities.distributed._DatasetSamplerWrapper": {
        "_sampler": "virtual workers: divides the data of a sampler of the user",
    },
    "lightning.pytorch.callbacks.LearningRateFinder": {
        "_early_exit": "refuses it with parameter servers",
    },
    "lightning.pytorch.callbacks.ModelCheckpoint": {
        "_every_n_train_steps": "refuses saves within an epoch with uneven_batches='join'",
        "_train_time_interval": "refuses saves by the clock, or warns of them",
    },
    "lightning.pytorch.callbacks.ModelPruning": {
        "_use_lottery_ticket_hypothesis": "refuses weights that are set back between two blocks",
    },
    "lightning.pytorch.callbacks.Timer": {
        "_interval": "warns of ranks that wait for each other at every step",
    },
    "lightning.pytorch.callbacks.WeightAveraging": {
        "_average_model": "averages it over the groups",
    },
    "lightning.pytorch.loops.optimization.automatic.Closure": {
        "_step_fn": "virtual workers: has one step make the gradients of several",
    },
    "lightning.pytorch.plugins.io.AsyncCheckpointIO": {
        "_executor": "waits for a save before a job is requeued",
    },
    "lightning.pytorch.strategies.DDPStrategy": {
        "_ddp_kwargs": "wraps the module over its group",
        "_setup_model": "wraps the module over the ranks that average gradients",
        "_layer_sync": "makes SyncBatchNorm span a group",
        "_timeout": "limits every wait",
    },
    "lightning.pytorch.utilities.combined_loader.CombinedLoader": {
        "_iterator": "notes where an epoch's data begin",
    },
}
"""Of objects that the user or Lightning makes; strategies check their own when they are made."""


def private(module: str, name: str) -> Any:
    """Return a name of :data:`OF_MODULES`. Imported where it is used: no import needs it."""
    if name not in OF_MODULES[module]:
        raise ValueError(f"{module}.{name} is not listed")
    return getattr(import_module(module), name)


def check_private_names(module: pl.LightningModule | None, virtual_workers: int = 1) -> None:
    """Check that the installed Lightning and torch have all names.

    Args:
        module: that its Trainer is about to run, or None where there is no Trainer.
        virtual_workers: of a rank; names that are for virtual workers, as their use says, are
            needed where there are several.

    Raises:
        ValueError: they lack some.

    """
    found = [*_gone_of_modules()]
    if module is not None:
        trainer = module.trainer
        found += _gone_of_trainer(trainer)
        for own in (trainer.strategy.checkpoint_io, *trainer.callbacks):  # type: ignore[attr-defined]
            found += _gone_of_instance(own)
    gone = [one for one in found if virtual_workers > 1 or "virtual worker" not in one]
    if gone:
        raise ValueError(_lacking(gone))


def check_names(instance: object) -> None:
    """Check that an object of Lightning has the names of :data:`OF_INSTANCES`.

    Raises:
        ValueError: the installed version lacks one.

    """
    if gone := list(_gone_of_instance(instance)):
        raise ValueError(_lacking(gone))


def _lacking(gone: Sequence[str]) -> str:
    return (
        f"Lightning {lightning.__version__} and torch {torch.__version__} lack what lightning_hier "
        f"builds on: {'; '.join(gone)}. Install versions that it was tested with: the ranges that "
        "its package metadata gives, as `pip install lightning_hier` does by itself"
    )


def _gone_of_trainer(trainer: pl.Trainer) -> Iterator[str]:
    for path, use in OF_TRAINER.items():
        holder: Any = trainer
        for name in path.split("."):
            holder = getattr(holder, name, _ABSENT)
            if holder is _ABSENT:
                yield f"Trainer.{path} ({use})"
                break


def _gone_of_modules() -> Iterator[str]:
    for module, names in OF_MODULES.items():
        for name, use in names.items():
            if not _has(module, name):
                yield f"{module}.{name} ({use})"


def _gone_of_instance(instance: object) -> Iterator[str]:
    for owner, names in OF_INSTANCES.items():
        module, _, kind = owner.rpartition(".")
        if _has(module, kind) and isinstance(instance, getattr(import_module(module), kind)):
            for name, use in names.items():
                if not hasattr(instance, name):
                    yield f"{kind}.{name} ({use})"


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False
