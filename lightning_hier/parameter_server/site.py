"""A rank's place in the transport: its context, its bound socket, and the folder of that."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_hier.parameter_server.addresses import (
    SOCKET_NAME,
    Offer,
    job_address,
    make_socket_folder,
    remove_socket_folder,
    tcp_endpoint,
)
from lightning_hier.parameter_server.credentials import Contact, Credentials
from lightning_hier.parameter_server.gatekeeper import Gatekeeper
from lightning_hier.parameter_server.message import Limits
from lightning_hier.parameter_server.refusals import Refusals
from lightning_hier.parameter_server.sockets import (
    LINGER_MS,
    bind_inside,
    bind_outside,
    make_context,
    server_socket,
)

_IPC = "ipc://"
_END_LIMIT_S = LINGER_MS / 1000 + 4.0

_log = logging.getLogger(__name__)


class Site:
    """What is opened first and closed last.

    Attributes:
        context: of all sockets of these ports.
        credentials: of this rank.
        gatekeeper: lets others in.
        server: the socket to bind.

    """

    def __init__(self, world_size: int, limits: Limits, refusals: Refusals) -> None:
        self.context = make_context(world_size)
        self.credentials = Credentials.make()
        self.gatekeeper = Gatekeeper(self.context, refusals)
        self.server = server_socket(self.context, limits)
        self.gatekeeper.start(self.server)
        self._clear: Callable[[], object] = lambda: None

    def bind(self, rank: int, offers: Sequence[Offer]) -> Contact:
        """Bind where the other ranks need it, and nowhere else.

        Raises:
            OSError: there is no folder or no address to bind to.
            zmq.ZMQError: binding failed.

        """
        host = offers[rank].host
        hosts = [offer.host for offer in offers]
        ipc = tcp = None
        if hosts.count(host) > 1:
            folder = make_socket_folder()
            # Also where the interpreter ends without anybody closing the ports.
            self._clear = weakref.finalize(self, _remove_own, folder, os.getpid())
            ipc = f"{_IPC}{folder / SOCKET_NAME}"
        bind_inside(self.server, ipc)
        if hosts.count(host) < len(hosts):
            wanted = tcp_endpoint(job_address(rank, offers))
            tcp = bind_outside(self.server, wanted, self.credentials)
        return Contact(rank, host, self.credentials.token, self.credentials.public_key, ipc, tcp)

    def clear_after(self, contact: Contact) -> None:
        """Remove the folder of a rank of this host that has died."""
        if contact.ipc is not None:
            remove_socket_folder(Path(contact.ipc.removeprefix(_IPC)).parent)

    def close(self) -> None:
        """End the context, after all other sockets have been closed."""
        self.server.disable_monitor()
        self.server.close()
        # Its end waits for every socket; one that was forgotten must not stop the rank for ever.
        end = threading.Thread(target=self.context.term, name="zmq-end", daemon=True)
        end.start()
        end.join(_END_LIMIT_S)
        if end.is_alive():
            _log.warning("ZeroMQ did not end within %g s: a port is still open", _END_LIMIT_S)
        self._clear()


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a fork of this rank inherits the order, but not the folder
        remove_socket_folder(folder)
