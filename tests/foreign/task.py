"""What a file in `packages` builds: a model of the package, its data, and its Trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor


@dataclass(kw_only=True)
class Task:
    """A model and its data. Random weights come from the seed that is set before.

    Attributes:
        module: model that is trained, of either package of Lightning.
        train: loader of training data, or the data module of both.
        val: loader of validation data, or None with a data module.
        metric: name under which the module logs its validation loss, which is positive.
        steps: length of a run.
        load: reads a checkpoint into a new module, without lightning_hier.
        trainer: the package's own Trainer, or another class with its arguments and `fit`.
        pickles: checkpoints hold objects, so that resuming needs `weights_only=False`.
        unused: the module has parameters without gradients, which DDP has to look for.

    """

    module: Any
    train: Any
    val: Any
    metric: str
    load: Callable[[str], Any]
    steps: int = 60
    trainer: Callable[..., Any] = pl.Trainer
    pickles: bool = False
    unused: bool = False

    @property
    def lightning(self) -> Any:
        """The package whose Trainer trains the module: lightning.pytorch or pytorch_lightning."""
        is_first = isinstance(self.module, pl.LightningModule)
        return import_module("lightning.pytorch" if is_first else "pytorch_lightning")


def build(package: str, seed: int) -> Task:
    """Build the task of a package after setting the seed."""
    pl.seed_everything(seed, workers=True, verbose=False)
    module = import_module(f"tests.foreign.packages.{package.replace('-', '_')}")
    result: Task = module.task()
    return result


def fingerprint(tensors: Mapping[str, Any]) -> str:
    """Return a hash of names, shapes and bits of all tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
