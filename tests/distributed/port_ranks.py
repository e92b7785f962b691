"""Ports of parameter servers for tests, on real ranks or for all ranks of a job in one process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from lightning_hier.comm import addresses
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.open_ports import Ports, open_ports
from lightning_hier.parameter_server.ports import ClientPort, Received, ServerPort
from tests.waiting import WAIT_S, wait_until


def open_rank(*, tcp: bool = False, **settings: Any) -> tuple[Ports, Traffic]:
    """Open this rank's ports in a job of `run_ranks`. With ``tcp``, every rank is its own host."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, traffic = dist.get_rank(), Traffic()
    with ExitStack() as stack:
        if tcp:
            stack.enter_context(
                mock.patch.object(addresses, "host_identity", lambda: f"host {rank}")
            )
        ports = open_ports(
            rank,
            dist.get_world_size(),
            lambda value: gather_json(value, torch.device("cpu")),
            traffic=traffic,
            tier_of=lambda peer: "across",
            **settings,
        )
    return ports, traffic


class Serving:
    """A thread that polls a rank's server and watch, and calls ``reply`` for each message.

    Attributes:
        lost: error of the watch, or an empty text.

    """

    def __init__(self, ports: Ports, reply: Callable[[Received], Any] | None = None) -> None:
        self.received: list[Received] = []
        self.lost = ""
        self._ports = ports
        self._reply = reply
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def senders(self, kind: Kind) -> set[int]:
        """Ranks from which a message of this kind has been received."""
        return {r.sender for r in list(self.received) if r.message.kind == kind}

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            received = self._ports.server.receive(0.02)
            try:
                self._ports.check()
            except PeerError as error:
                self.lost = str(error)
            if received is not None:
                self.received.append(received)
                if self._reply is not None:
                    self._reply(received)


def heard(port: ServerPort | ClientPort) -> Received:
    """Receive the next message, and fail if there is none."""
    received = port.receive(WAIT_S)
    assert received is not None
    return received


def counted(ports: Ports, reason: str, at_least: int = 1) -> None:
    """Wait until a rank has counted refusals with this reason."""
    wait_until(lambda: ports.refusals().get(reason, 0) >= at_least, f"{reason} to be counted")


class _Table:
    """An all-gather of ranks that are threads."""

    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size, timeout=WAIT_S)
        self._values: list[Any] = [None] * world_size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


@contextmanager
def opened(
    world_size: int, *, tcp: bool = False, ranks_per_host: int = 1, **settings: Any
) -> Iterator[list[Ports]]:
    """Open the ports of all ranks of a job in this process, and close them at the end.

    With ``tcp``, the ranks are on several hosts, with ``ranks_per_host`` on each.
    """
    table = _Table(world_size)
    names = threading.local()

    def open_one(rank: int) -> Ports:
        names.host = f"host {rank // ranks_per_host}"
        return open_ports(
            rank,
            world_size,
            partial(table.exchange, rank),
            traffic=Traffic(),
            tier_of=lambda peer: "across",
            **settings,
        )

    with ExitStack() as stack:
        if tcp:
            stack.enter_context(mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "lo"}))
            stack.enter_context(
                mock.patch.object(addresses, "host_identity", lambda: str(names.host))
            )
        with ThreadPoolExecutor(world_size) as pool:
            all_ports = list(pool.map(open_one, range(world_size)))
        for ports in all_ports:
            stack.callback(ports.close)
        yield all_ports
