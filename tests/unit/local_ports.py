"""Ports of tests, between threads of one process, with the interface of the real ports."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler, ServerLoop


class LocalNetwork:
    """Queues of all ranks. Ports refuse messages to and from ranks that are cut off.

    ``refuse`` selects messages that a port refuses, and ``lose`` messages that are lost in transit.
    """

    def __init__(self, world_size: int) -> None:
        self.servers: list[queue.Queue[Received]] = [queue.Queue() for _ in range(world_size)]
        self.clients: list[queue.Queue[Received]] = [queue.Queue() for _ in range(world_size)]
        self.cut_off: dict[int, str] = {}
        self.refuse: Callable[[int, int, Message], bool] = lambda sender, receiver, message: False
        self.lose: Callable[[int, int, Message], bool] = lambda sender, receiver, message: False

    def deliver(self, box: queue.Queue[Received], sender: int, to: int, message: Message) -> bool:
        if sender in self.cut_off or to in self.cut_off or self.refuse(sender, to, message):
            return False
        if self.lose(sender, to, message):
            return True
        box.put(Received(sender, str(sender).encode(), message))
        return True


class LocalServerPort:
    """The server port of one rank."""

    def __init__(self, network: LocalNetwork, rank: int) -> None:
        self._network, self._rank = network, rank

    def receive(self, timeout_s: float) -> Received | None:
        return _take(self._network.servers[self._rank], timeout_s)

    def send(self, address: bytes, message: Message) -> bool:
        to = int(address)
        return self._network.deliver(self._network.clients[to], self._rank, to, message)

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        return False


class LocalClientPort:
    """The client port of one rank."""

    def __init__(self, network: LocalNetwork, rank: int) -> None:
        self._network, self._rank = network, rank

    def receive(self, timeout_s: float) -> Received | None:
        if self._network.cut_off.get(self._rank) == "killed":
            raise RuntimeError("a rank that was killed does nothing more")
        return _take(self._network.clients[self._rank], timeout_s)

    def send(self, rank: int, message: Message) -> bool:
        return self._network.deliver(self._network.servers[rank], self._rank, rank, message)

    def is_sending(self, rank: int, kind: Kind, block: int) -> bool:
        return False


class LocalWatch:
    """Watch that reports the ranks that are cut off as lost."""

    def __init__(self, network: LocalNetwork, rank: int) -> None:
        self._network, self._rank = network, rank

    def poll(self, *, unread: bool = False) -> None: ...

    def lost(self) -> dict[int, str]:
        return {r: why for r, why in self._network.cut_off.items() if r != self._rank}

    def left(self) -> set[int]:
        return set()

    def gone(self) -> set[int]:
        return {*self.lost(), *self.left()}


def _take(box: queue.Queue[Received], timeout_s: float) -> Received | None:
    try:
        return box.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else box.get_nowait()
    except queue.Empty:
        return None


def on_every_rank(
    network: LocalNetwork,
    handlers: Callable[[int, LocalServerPort], list[Handler]],
    work: Callable[[int, RequestChannel], Any],
    *,
    timeout_s: float = 10.0,
) -> list[Any]:
    """Run ``work(rank, channel)`` in a thread for each rank. Return results or exceptions."""
    world_size = len(network.servers)

    def run(rank: int) -> Any:
        port: Any = LocalServerPort(network, rank)
        watch: Any = LocalWatch(network, rank)
        server_loop = ServerLoop(port, watch, handlers(rank, port))
        server_loop.start()
        client_port: Any = LocalClientPort(network, rank)
        try:
            return work(rank, RequestChannel(client_port, server_loop, timeout_s=timeout_s))
        except Exception as error:
            return error
        finally:
            finished.append(rank)
            if rank not in network.cut_off:
                # As in a job, no rank stops serving before all ranks have finished.
                while len(finished) < world_size:
                    server_loop.check()
                    pause.wait(0.01)
            server_loop.stop()

    pause = threading.Event()
    finished: list[int] = []
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(run, range(world_size)))
