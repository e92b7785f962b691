"""Ranks of one host meet at its loopback: torch's own ways listen on all interfaces."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1"

_PORTS = range(20_000, 32_000)


def loopback_store() -> TCPStore:
    """A store at which the ranks of this host meet, and nobody else; its port is in ``.port``."""
    with socket.create_server((ADDRESS, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            ADDRESS,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def free_port() -> int:
    """A port of the loopback that nobody has at this moment.

    It lies below the ports that systems give to outgoing connections, so that none of these takes
    it before the caller listens on it.
    """
    for port in random.SystemRandom().sample(_PORTS, k=len(_PORTS)):
        with suppress(OSError), socket.create_server((ADDRESS, port)):
            return port
    raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1} on {ADDRESS}")


def loopback_interface() -> str:
    """Name of the loopback: ``lo``, or something that begins so."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
