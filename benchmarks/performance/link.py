"""Measured goodput of a link, and the wire time of a number of bytes."""

from __future__ import annotations

import os
import socket
import time

import torch.distributed as dist

from benchmarks.joined import gathered
from lightning_hier.comm.addresses import interface_address

_CHUNK = 1 << 20
_LIMIT_S = 120.0


def bytes_to_send(model_bytes: int, hosts: int) -> float:
    """Return the smallest number of bytes that a host must send to average a model over hosts.

    With H hosts, each one receives 1/H of the model from all others, and sends them the mean of it.
    It sends ``2 (H - 1) / H`` models, for any number of ranks on a host.
    """
    return 2 * (hosts - 1) / hosts * model_bytes


def wire_seconds(nbytes: float, goodput: float) -> float:
    """Return the seconds that a link with this goodput, in bytes per second, needs at least.

    Raises:
        ValueError: the goodput is not positive.

    """
    if not goodput > 0:
        raise ValueError(f"goodput must be above 0 bytes/s, got {goodput}")
    return nbytes / goodput


def measure_goodput(nbytes: int, source: int, target: int) -> float:
    """Measure payload bytes per second over a TCP socket, from rank ``source`` to ``target``.

    All ranks must call it. The receiver measures the time from the end of the first chunk to the
    last byte, which excludes the connection and the burst that the token bucket allows.
    """
    rank = dist.get_rank()
    goodput = 0.0
    with socket.socket() as listener:
        endpoint = ["", 0]
        if rank == target:
            listener.bind((interface_address(os.environ["GLOO_SOCKET_IFNAME"]), 0))
            listener.listen(1)
            listener.settimeout(_LIMIT_S)
            endpoint = list(listener.getsockname())
        address, port = gathered(endpoint)[target]
        if rank == source:
            with socket.create_connection((address, port), timeout=_LIMIT_S) as sender:
                sender.sendall(bytes(_CHUNK + nbytes))
        elif rank == target:
            goodput = _receive(listener, nbytes)
    return float(gathered(goodput)[target])


def _receive(listener: socket.socket, nbytes: int) -> float:
    buffer = bytearray(_CHUNK)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_LIMIT_S)
        _read(connection, buffer, _CHUNK)
        begun = time.perf_counter()
        _read(connection, buffer, nbytes)
        return nbytes / (time.perf_counter() - begun)


def _read(connection: socket.socket, buffer: bytearray, nbytes: int) -> None:
    while nbytes > 0:
        read = connection.recv_into(buffer, min(len(buffer), nbytes))
        if not read:
            raise ConnectionError(f"the sender closed the connection, {nbytes} bytes missing")
        nbytes -= read
