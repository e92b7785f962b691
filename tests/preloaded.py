"""Modules that the fork server imports once, before ranks fork from it.

Objects that exist afterwards are frozen for the garbage collector. Otherwise the collection at the
end of each ``fit`` would visit all of them, and copy the pages that it touches into each rank.
"""

from __future__ import annotations

import gc
import os
from functools import cache
from importlib import import_module
from typing import Any

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch.distributed._tensor  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
from lightning.fabric.utilities import registry

import lightning_hier.parameter_server.psp.engine
import lightning_hier.parameter_server.two_stage.engine
import lightning_hier.strategies.server_session  # noqa: F401

if package := os.environ.get("FOREIGN_PACKAGE"):
    import_module(f"tests.foreign.packages.{package.replace('-', '_')}")

# Every Trainer reads the metadata of all installed packages, which takes a fifth of a short fit.
_registry: Any = registry
_registry.entry_points = cache(_registry.entry_points)
_registry._load_external_callbacks("lightning.pytorch.callbacks_factory")  # as a Trainer does
gc.collect()
gc.freeze()
