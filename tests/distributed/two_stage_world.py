"""Two-stage ASGD on the ranks of a test, without Lightning: ports, servant, client and engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.meeting import MeetingDuty, Meetings
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import open_ports
from lightning_hier.parameter_server.servant import Servant
from lightning_hier.parameter_server.two_stage.engine import TwoStageASGD
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings

GRACE_S = 1.0


@dataclass
class World:
    """What a rank's test works with."""

    rank: int
    engine: TwoStageASGD
    client: Client
    traffic: Traffic


@contextmanager
def two_stage_world(
    optimizers: Sequence[Optimizer], group_size: int, **settings: Any
) -> Iterator[World]:
    """Start training on this rank; wait for the others at the end, unless there was an error."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chosen = TwoStageSettings(**{"timeout_s": 20.0} | settings)

    def exchange(value: Any) -> list[Any]:
        return gather_json(value, torch.device("cpu"))

    traffic = Traffic()
    ports = open_ports(
        rank,
        world_size,
        exchange,
        traffic=traffic,
        tier_of=lambda peer: "group" if peer // group_size == rank // group_size else "across",
        heartbeat_s=0.3,
        grace_s=GRACE_S,
    )
    servant = Servant(ports.server, ports.watch, [])
    client = Client(ports.open_client("main"), servant, timeout_s=2 * chosen.timeout_s)
    engine = TwoStageASGD(
        optimizers,
        rank=rank,
        world_size=world_size,
        group_size=group_size,
        exchange=exchange,
        ports=ports,
        client=client,
        settings=chosen,
    )
    servant.add([MeetingDuty(world_size, ports.server.send, limit_s=20.0), *engine.duties])
    meetings = Meetings(rank, world_size, client)
    servant.start()
    try:
        yield World(rank, engine, client, traffic)
        # Ranks may have died on purpose, so the process group is of no use any more.
        meetings.meet()
        for peer in set(range(world_size)) - client.gone():
            client.send(peer, Message(Kind.BYE))
    finally:
        servant.stop()
        engine.close()
        ports.close()
