"""Undocumented names of Lightning and torch that this package uses.

A release may remove any of them. All are listed here with their use, so that a new release is
checked in one place. Tests compare this list with the source, with the installed versions and with
``docs/compatibility.md``. A missing name is one error before training instead of an
``AttributeError`` during training. Objects that are created during training are checked when they
are used. Importing the package needs none of these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import lightning
import lightning.pytorch as pl
import torch

OF_TRAINER: Mapping[str, str] = {
    "_accelerator_connector.cluster_environment": "asks SLURM to requeue a job",
    "_checkpoint_connector._loaded_checkpoint": "restores the step counts that servers have saved",
    "_checkpoint_connector.dump_checkpoint": "sends the state to a group that joins",
    "_checkpoint_connector.resume_start": "replaced: takes the state of a group that trains",
    "_logger_connector.should_update_logs": "logs at the steps at which Lightning logs",
    "_signal_connector._sigterm_notifier_fn": "replaced: all ranks stop at one synchronisation",
    "_signal_connector._slurm_sigusr_handler_fn": "replaced: all ranks save and requeue together",
    "_signal_connector.received_sigterm": "stops the loop after the agreed step",
    "_val_check_time_interval": "rejects validation at time intervals",
    "fit_loop._combined_loader": "records the position in the data at the start of an epoch",
    "fit_loop._load_combined_loader_states": "replaced: each rank restores its own loaders",
    "fit_loop._restarting": "resumes at the position of the save",
    "fit_loop._should_accumulate": "sharded modules: finds the last backward pass of a step",
    "fit_loop.epoch_loop._batches_that_stepped": "logs with Lightning's step number",
    "fit_loop.epoch_loop._broadcast_sigterm_tensor": (
        "replaced: avoids a broadcast over all ranks at every batch"
    ),
    "fit_loop.epoch_loop._get_monitor_value": "replaced: keeps metrics that schedulers follow",
    "fit_loop.epoch_loop._num_ready_batches_reached": "detects the last batch of an epoch",
    "fit_loop.epoch_loop._on_before_fetch": "replaced: state of loaders that read a batch ahead",
    "fit_loop.epoch_loop._restarting": "resumes at the position of the save",
    "fit_loop.epoch_loop._should_accumulate": "saves the gradients of an unfinished accumulation",
    "fit_loop.epoch_loop._skip_next_val": "resumes after a validation",
    "fit_loop.epoch_loop.on_run_start": "replaced: resumes exactly within an epoch",
    "fit_loop.epoch_loop.reset": "replaced: resumes exactly within an epoch",
    "fit_loop.epoch_loop.val_loop._restarting": "resumes before a validation",
    "fit_loop.epoch_loop.val_loop.increment_progress_to_evaluation_end": (
        "replaced: validation keeps random states"
    ),
    "fit_loop.epoch_loop.val_loop.run": "replaced: validation keeps random states",
    "save_checkpoint": "replaced: a requeued job finds complete saves only",
}
"""Attributes below a Trainer, including public methods of Lightning's loops that are replaced."""

OF_MODULES: Mapping[str, Mapping[str, str]] = {
    "lightning.fabric.utilities.load": {
        "_METADATA_FILENAME": "sharded modules: names the file of Lightning's checkpoint folders",
    },
    "lightning.pytorch.loops.fetchers": {
        "_DataLoaderIterDataFetcher": "detects steps that read the data iterator themselves",
    },
    "lightning.pytorch.strategies.launchers": {
        "_SubprocessScriptLauncher": "sharded modules: errors of a run name missing ranks",
    },
    "torch": {
        "_foreach_copy_": "copies many tensors in one call",
    },
    "torch.autograd.profiler": {
        "_is_profiler_enabled": "records profiler ranges only while a profiler runs",
    },
    "torch.distributed": {
        "ProcessGroup._register_backend": "connects groups that come and go",
        "ProcessGroup._set_default_backend": "connects groups that come and go",
        "ProcessGroupGloo._Options._devices": "connects groups through the address of this host",
        "ProcessGroupGloo._Options": "connects groups that come and go, with a time limit",
    },
    "torch.distributed.distributed_c10d": {
        "_get_default_group": "returns the process group of the world",
        "_get_default_store": "records the progress of each rank, for errors that name ranks",
    },
    "torch.nn.modules.batchnorm": {
        "_BatchNorm": "unfreezes BatchNorm statistics when a run resumes",
    },
}
"""Names in modules, checked before training."""

OF_INSTANCES: Mapping[str, Mapping[str, str]] = {
    "lightning.fabric.utilities.distributed._DatasetSamplerWrapper": {
        "_sampler": "finds samplers without a fixed order",
    },
    "lightning.pytorch.callbacks.LearningRateFinder": {
        "_early_exit": "rejects the callback with parameter servers",
    },
    "lightning.pytorch.callbacks.ModelCheckpoint": {
        "_train_time_interval": "rejects saves at time intervals, or warns about them",
    },
    "lightning.pytorch.callbacks.Timer": {
        "_interval": "warns about synchronisation of all ranks at every step",
    },
    "lightning.pytorch.callbacks.WeightAveraging": {
        "_average_model": "averages the averaged model over the groups",
    },
    "lightning.pytorch.plugins.io.AsyncCheckpointIO": {
        "_executor": "waits for an asynchronous save before requeueing",
    },
    "lightning.pytorch.strategies.DDPStrategy": {
        "_ddp_kwargs": "wraps the module in DDP over its group",
        "_setup_model": "wraps the module in DDP over the ranks that average gradients",
        "_layer_sync": "restricts SyncBatchNorm to a group",
        "_timeout": "sets the time limit of every wait",
    },
    "lightning.pytorch.strategies.ModelParallelStrategy": {
        "_save_distributed_checkpoint": "selects the format of checkpoints",
        "_setup_distributed": "creates the process group without a mesh of the world",
        "_timeout": "sets the time limit of every wait",
    },
    "lightning.pytorch.utilities.combined_loader.CombinedLoader": {
        "_iterator": "records the position in the data at the start of an epoch",
    },
    "torch.nn.Module": {
        "_modules": "detects parameters that are unfrozen, at every step",
        "_non_persistent_buffers_set": "leaves out buffers that are not saved",
        "_parameters": "detects parameters that are unfrozen, at every step",
    },
}
"""Attributes of objects of Lightning and torch. A strategy checks its own when it is created."""


def private(module: str, name: str) -> Any:
    """Return an object of :data:`OF_MODULES`. Its module is imported at the time of the call."""
    # An unlisted name would not be checked before training.
    if name not in OF_MODULES[module]:
        raise ValueError(f"{module}.{name} is not listed")
    return getattr(import_module(module), name)


def check_private_names(module: pl.LightningModule | None) -> None:
    """Raise ValueError if the installed Lightning and torch lack a name.

    Args:
        module: module that its Trainer is about to run, or None without a Trainer.

    """
    missing = [
        f"{path}.{name} ({use})"
        for path, names in OF_MODULES.items()
        for name, use in names.items()
        if not _has(_module(path), name)
    ]
    if module is not None:
        trainer: Any = module.trainer
        missing += [f"Trainer.{p} ({use})" for p, use in OF_TRAINER.items() if not _has(trainer, p)]
        for instance in (module, trainer.strategy.checkpoint_io, *trainer.callbacks):
            missing += _missing_of(instance)
    # One error with all names, so that a new release needs to be tried only once.
    _raise(missing)


def check_names(instance: object) -> None:
    """Raise ValueError if an object of Lightning or torch lacks one of its :data:`OF_INSTANCES`."""
    _raise(_missing_of(instance))


def _missing_of(instance: object) -> list[str]:
    missing = []
    for owner, names in OF_INSTANCES.items():
        path, _, kind = owner.rpartition(".")
        # Not isinstance, because a release may have removed or renamed the class.
        if getattr(_module(path), kind, None) in type(instance).__mro__:
            missing += [
                f"{kind}.{name} ({use})" for name, use in names.items() if not _has(instance, name)
            ]
    return missing


def _module(path: str) -> object:
    try:
        return import_module(path)
    except ImportError:
        return None


def _has(holder: object, path: str) -> bool:
    try:
        attrgetter(path)(holder)
    except AttributeError:
        return False
    return True


def _raise(missing: Sequence[str]) -> None:
    if missing:
        raise ValueError(
            f"Lightning {lightning.__version__} and torch {torch.__version__} lack names that "
            f"lightning_hier uses: {'; '.join(missing)}. Install versions that its package "
            "metadata allows, as `pip install lightning_hier` does"
        )
