"""PSP-SGD on the ranks of a test, without Lightning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.optim import Optimizer

from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.psp.engine import PSPEngine
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.request_channel import RequestChannel
from tests.distributed.server_world import World, server_world


def psp_world(
    optimizers: Sequence[Optimizer],
    *,
    timeout_s: float = 20.0,
    **settings: Any,
) -> AbstractContextManager[World[PSPEngine]]:
    """Start training with PSP-SGD on this rank, with settings of :class:`PSPSettings`."""
    world_size = int(os.environ["WORLD_SIZE"])
    chosen = PSPSettings(timeout_s=timeout_s, **settings)

    def build(rank: int, ports: Ports, channel: RequestChannel) -> PSPEngine:
        return PSPEngine(
            rank, optimizers, channel, ports.server, world_size=world_size, settings=chosen
        )

    return server_world(build, timeout_s=timeout_s)
