"""Throughput of the ports of the parameter servers, compared with plain sockets.

A process pushes 90 MB to another one, which acknowledges them. The time is that from the push to
the acknowledgement. The transports alternate within every repetition, so that other load on the
machine affects all of them. Every ratio is that of two times of the same repetition.

    python -m benchmarks.transport
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import socket
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import zmq
from torch import Tensor

from lightning_hier.comm import addresses
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import open_ports

_LIMIT_S = 60.0
_ACKNOWLEDGED = b"!"

Exchange = Callable[[Any], list[Any]]


class Transport(ABC):
    """A transport from the client, rank 0, to the server, rank 1. Both create it together."""

    @abstractmethod
    def push(self, payload: Tensor) -> None:
        """Send a push, and wait for the acknowledgement. Called by the client."""

    @abstractmethod
    def serve(self) -> None:
        """Receive one push, and acknowledge it. Called by the server."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class PlainSocket(Transport):
    """A stream socket. The server reads all pushes into the same buffer."""

    def __init__(self, rank: int, exchange: Exchange, family: int, nbytes: int) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(family) as listener:
            if rank == 1:
                tcp = family == socket.AF_INET
                listener.bind(("127.0.0.1", 0) if tcp else f"{folder}/bare")
                listener.listen(1)
                address = exchange(listener.getsockname())[1]
                self._socket, _ = listener.accept()
                self._buffer = memoryview(bytearray(nbytes))
            else:
                address = exchange(None)[1]
                self._socket = socket.socket(family)
                self._socket.connect(tuple(address) if isinstance(address, list) else address)
            exchange("connected")

    def push(self, payload: Tensor) -> None:
        self._socket.sendall(payload.numpy().data.cast("B"))
        if self._socket.recv(1) != _ACKNOWLEDGED:
            raise ConnectionError("no acknowledgement")

    def serve(self) -> None:
        read = 0
        while read < len(self._buffer):
            read += self._socket.recv_into(self._buffer[read:])
        self._socket.sendall(_ACKNOWLEDGED)

    def close(self) -> None:
        self._socket.close()


class OurPorts(Transport):
    """The ports as strategies use them: ipc on one host, tcp with CURVE between hosts."""

    def __init__(self, rank: int, exchange: Exchange, *, one_host: bool) -> None:
        host = "host" if one_host else f"host {rank}"
        with (
            mock.patch.object(addresses, "host_identity", lambda: host),
            mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": _loopback()}),
        ):
            self._ports = open_ports(
                rank, 2, exchange, traffic=Traffic(), tier_of=lambda peer: "across"
            )
        self._client = self._ports.clients["main"]

    def push(self, payload: Tensor) -> None:
        if not self._client.send(1, Message(Kind.PUSH, payload=payload)):
            raise ConnectionError("the queue is full")
        if self._client.receive(_LIMIT_S) is None:
            raise TimeoutError("no acknowledgement")

    def serve(self) -> None:
        received = self._ports.server.receive(_LIMIT_S)
        if received is None:
            raise TimeoutError("no push")
        self._ports.server.send(received.address, Message(Kind.BLOCK))

    def close(self) -> None:
        self._ports.close()


def _transports(rank: int, exchange: Exchange, nbytes: int) -> dict[str, Transport]:
    return {
        "bare unix socket": PlainSocket(rank, exchange, socket.AF_UNIX, nbytes),
        "ports, ipc": OurPorts(rank, exchange, one_host=True),
        "bare tcp socket": PlainSocket(rank, exchange, socket.AF_INET, nbytes),
        "ports, tcp with CURVE": OurPorts(rank, exchange, one_host=False),
    }


_BASELINES = {
    "ports, ipc": "bare unix socket",
    "ports, tcp with CURVE": "bare tcp socket",
}


def _exchange(pipe: Pipe, rank: int, value: Any) -> list[Any]:
    pipe.send(value)
    other = pipe.recv()
    return [value, other] if rank == 0 else [other, value]


def _order(names: Sequence[str], repetition: int) -> list[str]:
    """Rotate the order, so that each transport runs after different ones."""
    first = repetition % len(names)
    return [*names[first:], *names[:first]]


def _serve(pipe: Pipe, nbytes: int, repetitions: int) -> None:
    torch.set_num_threads(1)
    transports = _transports(1, partial(_exchange, pipe, 1), nbytes)
    for repetition in range(repetitions):
        for name in _order(list(transports), repetition):
            transports[name].serve()
    pipe.recv()
    for transport in transports.values():
        transport.close()


def measure(nbytes: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of the pushes, by transport, without the first repetition."""
    context = multiprocessing.get_context("spawn")
    pipe, server_end = context.Pipe()
    server = context.Process(target=_serve, args=(server_end, nbytes, repetitions + 1), daemon=True)
    server.start()
    transports = _transports(0, partial(_exchange, pipe, 0), nbytes)
    payload = torch.ones(nbytes // 4)
    seconds: dict[str, list[float]] = {name: [] for name in transports}
    for repetition in range(repetitions + 1):
        for name in _order(list(transports), repetition):
            begun = time.perf_counter()
            transports[name].push(payload)
            seconds[name].append(time.perf_counter() - begun)
    pipe.send("end")
    for transport in transports.values():
        transport.close()
    server.join(_LIMIT_S)
    return {name: times[1:] for name, times in seconds.items()}


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def table(seconds: dict[str, list[float]], nbytes: int) -> str:
    """Return a table of GB/s and of the ratio to the plain socket, as Markdown."""
    rows = [
        "| transport | GB/s, median (quartiles) | of the bare socket, median (quartiles) |",
        "| --- | --- | --- |",
    ]
    for name, times in seconds.items():
        low, middle, high = _quartiles([nbytes / 1e9 / s for s in times])
        share = ""
        if name in _BASELINES:
            plain = seconds[_BASELINES[name]]
            ratios = [p / t for p, t in zip(plain, times, strict=True)]
            first, median, third = _quartiles(ratios)
            share = f"{median:.2f} ({first:.2f} to {third:.2f})"
        rows.append(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) | {share} |")
    return "\n".join(rows)


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=90, help="size of a push")
    parser.add_argument("--repetitions", type=int, default=30)
    arguments = parser.parse_args()
    nbytes = arguments.megabytes * 10**6
    seconds = measure(nbytes, arguments.repetitions)
    cpu = Path("/proc/cpuinfo").read_text().count("processor\t")
    print(
        f"Pushes of {arguments.megabytes} MB, {arguments.repetitions} repetitions.\n"
        f"Python {platform.python_version()}, torch {torch.__version__}, pyzmq "
        f"{zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}, {platform.machine()}, {cpu} cores\n"
    )
    print(table(seconds, nbytes))


if __name__ == "__main__":
    main()
