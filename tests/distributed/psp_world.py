"""PSP-SGD on the ranks of a test, without Lightning: ports, servant, client and engine."""

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
from lightning_hier.parameter_server.psp.engine import PSPEngine
from lightning_hier.parameter_server.psp.pull_rule import PullRule
from lightning_hier.parameter_server.psp.push_rule import PushRule
from lightning_hier.parameter_server.psp.served_block import Terms
from lightning_hier.parameter_server.servant import Servant

GRACE_S = 1.0


@dataclass
class World:
    """What a rank's test works with."""

    rank: int
    engine: PSPEngine
    client: Client
    traffic: Traffic
    meetings: Meetings


@contextmanager
def psp_world(
    optimizers: Sequence[Optimizer],
    *,
    push_rule: PushRule,
    pull_rule: PullRule,
    timeout_s: float = 20.0,
    **terms: Any,
) -> Iterator[World]:
    """Start training on this rank; wait for the others at the end, unless there was an error."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    traffic = Traffic()
    ports = open_ports(
        rank,
        world_size,
        lambda value: gather_json(value, torch.device("cpu")),
        traffic=traffic,
        tier_of=lambda peer: "across",
        heartbeat_s=0.3,
        grace_s=GRACE_S,
    )
    servant = Servant(ports.server, ports.watch, [])
    client = Client(ports.open_client("main"), servant, timeout_s=2 * timeout_s)
    chosen = Terms(rule=push_rule, world_size=world_size, limit_s=timeout_s, **terms)
    engine = PSPEngine(rank, optimizers, client, ports.server.send, chosen, pull_rule)
    servant.add([MeetingDuty(world_size, ports.server.send, limit_s=timeout_s), *engine.duties])
    meetings = Meetings(rank, world_size, client)
    servant.start()
    try:
        yield World(rank, engine, client, traffic, meetings)
        # Ranks may have died on purpose, so the process group is of no use any more.
        meetings.meet()
        for peer in set(range(world_size)) - client.gone():
            client.send(peer, Message(Kind.BYE))
    finally:
        servant.stop()
        engine.close()
        ports.close()
