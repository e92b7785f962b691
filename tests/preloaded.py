"""What every rank begins with: imported once, by the server from which ranks fork.

What is here already is kept from the garbage collector, which would go through all of it at the
end of each ``fit``, and copy every page that it touches into each rank.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks  # noqa: F401
from lightning.fabric.utilities import registry

import lightning_hier.parameter_server.psp.engine
import lightning_hier.parameter_server.two_stage.engine
import lightning_hier.strategies.server_session  # noqa: F401

# Every Trainer reads the metadata of all installed packages, in a fifth of the time of a short fit.
_registry: Any = registry
_registry.entry_points = cache(_registry.entry_points)
_registry._load_external_callbacks("lightning.pytorch.callbacks_factory")  # as a Trainer does
gc.collect()
gc.freeze()
