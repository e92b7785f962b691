"""Rendezvous of the ranks of one host over the loopback interface.

The stores that torch creates by itself listen on all interfaces.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1"

_PORTS = range(20_000, 32_000)


def loopback_store() -> TCPStore:
    """Return a store that only processes of this host can reach. Its port is ``store.port``."""
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
    """Return a port of the loopback interface that is free now.

    It is below the ephemeral ports, so that no outgoing connection uses it before the caller
    listens on it.

    Raises:
        OSError: no port is free.
    """
    for port in random.SystemRandom().sample(_PORTS, k=len(_PORTS)):
        with suppress(OSError), socket.create_server((ADDRESS, port)):
            return port
    raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1} on {ADDRESS}")


def loopback_interface() -> str:
    """Return the name of the loopback interface, which starts with ``lo``."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
