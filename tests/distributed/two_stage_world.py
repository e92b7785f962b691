"""Two-stage ASGD on the ranks of a test, without Lightning."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.optim import Optimizer

from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.two_stage.engine import TwoStageASGD
from tests.distributed.server_world import World, exchange, server_world


def two_stage_world(
    optimizers: Sequence[Optimizer],
    group_size: int,
    *,
    before: Callable[[TwoStageASGD], Any] = lambda engine: None,
    **settings: Any,
) -> AbstractContextManager[World[TwoStageASGD]]:
    """Start two-stage ASGD on this rank, with settings of :class:`TwoStageSettings`.

    Args:
        optimizers: the optimizers.
        group_size: number of ranks in a group.
        before: called with the engine before any rank trains.
        settings: fields of :class:`TwoStageSettings`.

    """
    chosen = TwoStageSettings(**{"timeout_s": 20.0} | settings)

    def build(rank: int, ports: Ports, channel: RequestChannel) -> TwoStageASGD:
        return TwoStageASGD(
            optimizers,
            rank=rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            group_size=group_size,
            exchange=exchange,
            ports=ports,
            channel=channel,
            settings=chosen,
        )

    is_first = int(os.environ["RANK"]) % group_size == 0
    return server_world(
        build,
        timeout_s=chosen.timeout_s,
        group_size=group_size,
        clients=("main", "node") if is_first else ("main",),
        before=before,
    )
