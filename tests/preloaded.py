"""What every rank begins with: imported once, by the server from which ranks fork.

What is here already is kept from the garbage collector, which would go through all of it at the
end of each ``fit``, and copy every page that it touches into each rank.
"""

from __future__ import annotations

import gc

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks  # noqa: F401

import lightning_hier.parameter_server.psp.engine
import lightning_hier.parameter_server.two_stage.engine
import lightning_hier.strategies.server_session  # noqa: F401

gc.collect()
gc.freeze()
