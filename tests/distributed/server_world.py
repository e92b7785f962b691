"""Parameter servers on the ranks of a test, without Lightning: ports, servant, client, engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.meeting import MeetingDuty, Meetings
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Ports, open_ports
from lightning_hier.parameter_server.servant import Servant

# A rank that is killed breaks its connections at once. A heartbeat that finds frozen ranks as fast
# would take one for lost that waits for its turn on a busy machine.
HEARTBEAT_S = 1.0
GRACE_S = 1.5
_CPU = torch.device("cpu")

E = TypeVar("E", bound=Engine)


@dataclass
class World(Generic[E]):
    """What a rank's test works with."""

    rank: int
    engine: E
    client: Client
    traffic: Traffic


@contextmanager
def server_world(
    build: Callable[[int, Ports, Client], E],
    *,
    timeout_s: float,
    group_size: int = 1,
    before: Callable[[E], Any] = lambda engine: None,
) -> Iterator[World[E]]:
    """Start training on this rank; wait for the others at the end, unless there was an error.

    Args:
        build: makes the engine of a rank.
        timeout_s: limit of a wait.
        group_size: ranks of a group, by which traffic is counted.
        before: what to do with the engine before any rank trains.

    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    traffic = Traffic()
    ports = open_ports(
        rank,
        world_size,
        exchange,
        traffic=traffic,
        tier_of=lambda peer: "group" if peer // group_size == rank // group_size else "across",
        heartbeat_s=HEARTBEAT_S,
        grace_s=GRACE_S,
    )
    servant = Servant(ports.server, ports.watch, [])
    client = Client(ports.open_client("main"), servant, timeout_s=2 * timeout_s)
    engine = build(rank, ports, client)
    servant.add([MeetingDuty(world_size, ports.server, limit_s=timeout_s), *engine.duties])
    meetings = Meetings(world_size, client)
    before(engine)
    exchange("nobody has begun")
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


def exchange(value: Any) -> list[Any]:
    """Every rank's value, in order of rank."""
    return gather_json(value, _CPU)
