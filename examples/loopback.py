"""Ranks of one host meet at its loopback: torch's own ways listen on all interfaces."""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1"


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
    """A port of the loopback that nobody has at this moment."""
    with socket.create_server((ADDRESS, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def loopback_interface() -> str:
    """Name of the loopback: ``lo``, or something that begins so."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
