"""Parameter servers on the ranks of a test, without Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.open_ports import Ports, open_ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import ServerLoop

_CPU = torch.device("cpu")

E = TypeVar("E", bound=Engine)


@dataclass
class World(Generic[E]):
    """Objects of a rank for its test."""

    rank: int
    engine: E
    channel: RequestChannel
    traffic: Traffic


@contextmanager
def server_world(
    build: Callable[[int, Ports, RequestChannel], E],
    *,
    timeout_s: float,
    group_size: int = 1,
    clients: Sequence[str] = ("main",),
    before: Callable[[E], Any] = lambda engine: None,
) -> Iterator[World[E]]:
    """Start training on this rank. At the end, wait for the others unless there was an error.

    Args:
        build: creates the engine of a rank.
        timeout_s: limit of a wait.
        group_size: number of ranks in a group, for the tiers of traffic.
        clients: names of the client ports of this rank.
        before: called with the engine before any rank trains.

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
        clients=clients,
    )
    server_loop = ServerLoop(ports)
    channel = RequestChannel(ports.clients["main"], server_loop, timeout_s=2 * timeout_s)
    engine = build(rank, ports, channel)
    server_loop.servers = engine.servers
    before(engine)
    exchange("nobody has begun")
    server_loop.start()
    try:
        yield World(rank, engine, channel, traffic)
        for _ in range(2):
            exchange("no server is needed")
            server_loop.stop_watching()
    except BaseException as error:
        server_loop.fail(error)
        raise
    finally:
        server_loop.stop()
        engine.close()
        ports.close()


def exchange(value: Any) -> list[Any]:
    """All-gather a value, in order of rank."""
    return gather_json(value, _CPU)
