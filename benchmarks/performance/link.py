"""What a link carries, and what that makes of bytes: measured goodput and the wire time."""

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
    """The fewest bytes that a host must send for a model to be averaged over hosts.

    Each host sums a share of 1/H that all others send to it, and hands the mean of it round:
    ``2 (H - 1) / H`` models, whatever the number of ranks on a host.
    """
    return 2 * (hosts - 1) / hosts * model_bytes


def wire_seconds(nbytes: float, goodput: float) -> float:
    """How long a link that carries so many payload bytes a second needs at least.

    Raises:
        ValueError: a goodput that is not above 0.

    """
    if not goodput > 0:
        raise ValueError(f"goodput must be above 0 bytes/s, got {goodput}")
    return nbytes / goodput


def measure_goodput(nbytes: int, source: int, target: int) -> float:
    """Payload bytes per second over a bare TCP socket, from rank ``source`` to ``target``.

    A collective of the world: the others wait. The clock is the receiver's, from its first chunk to
    its last, so that neither the connection nor what the link lets through at once counts.
    """
    rank = dist.get_rank()
    found = 0.0
    with socket.socket() as listener:
        place = ["", 0]
        if rank == target:
            listener.bind((interface_address(os.environ["GLOO_SOCKET_IFNAME"]), 0))
            listener.listen(1)
            listener.settimeout(_LIMIT_S)
            place = list(listener.getsockname())
        address, port = gathered(place)[target]
        if rank == source:
            with socket.create_connection((address, port), timeout=_LIMIT_S) as sender:
                sender.sendall(bytes(_CHUNK + nbytes))
        elif rank == target:
            found = _receive(listener, nbytes)
    return float(gathered(found)[target])


def _receive(listener: socket.socket, nbytes: int) -> float:
    memory = bytearray(_CHUNK)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_LIMIT_S)
        _read(connection, memory, _CHUNK)
        begun = time.perf_counter()
        _read(connection, memory, nbytes)
        return nbytes / (time.perf_counter() - begun)


def _read(connection: socket.socket, memory: bytearray, nbytes: int) -> None:
    while nbytes > 0:
        read = connection.recv_into(memory, min(len(memory), nbytes))
        if not read:
            raise ConnectionError(f"the sender left with {nbytes} bytes to come")
        nbytes -= read
