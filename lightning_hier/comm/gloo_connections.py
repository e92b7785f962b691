"""Connections of gloo in this process, which are closed when a collective has failed.

Nothing interrupts a wait in a collective of gloo, and only a rank that exchanges data with a lost
rank detects the loss. The others would wait for this rank until its process ends or the time limit
passes. It therefore closes its connections as soon as it knows, and every wait of its peers fails.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SOCKETS = "/proc/self/fd"  # Linux only; elsewhere, peers wait as described above

# File descriptors with the numbers of their sockets, because a descriptor is used again.
_opened: set[tuple[int, str]] = set()


@contextmanager
def recorded_connections() -> Iterator[None]:
    """Record the connections that the body opens by creating a process group."""
    before = _sockets()
    yield
    _opened.update(_sockets() - before)


def close_connections() -> None:
    """Close the connections of all recorded process groups, from any thread. They stay unusable."""
    store = int(os.environ.get("MASTER_PORT", "0"))  # which is needed to name the lost rank
    for descriptor, _ in _opened & _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            # Another thread may have opened a socket of another kind meanwhile.
            is_gloos = connection.family in (socket.AF_INET, socket.AF_INET6)
            if is_gloos and store not in (connection.getsockname()[1], connection.getpeername()[1]):
                # A copy of the descriptor was closed, and gloo will close its own one.
                connection.shutdown(socket.SHUT_RDWR)
    _opened.clear()


def _sockets() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir(_SOCKETS) if os.path.isdir(_SOCKETS) else ():
        with suppress(OSError):  # a descriptor of another thread, or of this listing
            target = os.readlink(f"{_SOCKETS}/{name}")
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found
