"""A rank's end of the transport: its ZeroMQ context, its bound socket, and its host's sockets.

A Unix socket has a name in the file system. A killed process leaves it behind, and another process
with access to the folder could bind a socket of its own to it. So names exist only during the
start: every rank of the host opens the sockets of the others (``O_PATH``), and then all names are
removed. A rank connects, and reconnects, through ``/proc/self/fd`` while the server exists.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

from lightning_hier.parameter_server.addresses import Offer, job_address, tcp_endpoint
from lightning_hier.parameter_server.authentication import Authenticator, Contact, Credentials
from lightning_hier.parameter_server.message import Limits
from lightning_hier.parameter_server.refusals import Refusals
from lightning_hier.parameter_server.sockets import (
    LINGER_MS,
    bind_inside,
    bind_outside,
    make_context,
    server_socket,
)

_FOLDER_PREFIX = "lightning_hier-"
_SOCKET_NAME = "server"
_END_LIMIT_S = LINGER_MS / 1000 + 4.0

_log = logging.getLogger(__name__)


class Transport:
    """The resources that are opened first and closed last.

    Attributes:
        context: context of all sockets of these ports.
        credentials: credentials of this rank.
        authenticator: authenticator of peers on other hosts.
        server: the socket to bind.

    """

    def __init__(self, world_size: int, limits: Limits, refusals: Refusals) -> None:
        self.context = make_context(world_size)
        self.credentials = Credentials.make()
        self.authenticator = Authenticator(self.context, refusals)
        self.server = server_socket(self.context, limits)
        self.authenticator.start(self.server)
        self._folder: TemporaryDirectory[str] | None = None
        self._handles: list[int] = []

    def bind(self, rank: int, offers: Sequence[Offer]) -> Contact:
        """Bind the addresses that other ranks need, and no others.

        Raises:
            OSError: there is no folder or no address to bind to.
            zmq.ZMQError: binding failed.

        """
        host = offers[rank].host
        hosts = [offer.host for offer in offers]
        ipc = tcp = None
        if hosts.count(host) > 1:
            # Only this user can enter it.
            self._folder = TemporaryDirectory(prefix=_FOLDER_PREFIX)
            # Through a handle: the address of a socket has at most 107 bytes, a path may have more.
            ipc = f"{self._open(self._folder.name)}/{_SOCKET_NAME}"
        bind_inside(self.server, ipc)
        if hosts.count(host) < len(hosts):
            wanted = tcp_endpoint(job_address(rank, offers))
            tcp = bind_outside(self.server, wanted, self.credentials)
        path = None if self._folder is None else f"{self._folder.name}/{_SOCKET_NAME}"
        return Contact(rank, host, self.credentials.token, self.credentials.public_key, path, tcp)

    def open_sockets(self, host: str, contacts: Sequence[Contact]) -> list[Contact]:
        """The contacts, with endpoints that outlive the names of the sockets of ``host``.

        Raises:
            OSError: a socket can't be opened.

        """
        return [
            replace(contact, ipc=self._open(contact.ipc))
            if contact.host == host and contact.ipc is not None
            else contact
            for contact in contacts
        ]

    def remove_name(self) -> None:
        """Remove the name of this rank's socket, once all ranks of its host have opened it."""
        if self._folder is not None:
            self._folder.cleanup()

    def close(self) -> None:
        """End the context, after all other sockets have been closed."""
        self.server.disable_monitor()
        self.server.close()
        # term() waits for every socket; an unclosed one must not block the rank for ever.
        end = threading.Thread(target=self.context.term, name="zmq-end", daemon=True)
        end.start()
        end.join(_END_LIMIT_S)
        self.remove_name()
        if end.is_alive():  # it may still connect through the handles
            _log.warning("ZeroMQ did not end within %g s: a port is still open", _END_LIMIT_S)
            return
        while self._handles:
            os.close(self._handles.pop())

    def _open(self, path: str) -> str:
        """An endpoint of the open socket at ``path``, usable after its name is removed."""
        self._handles.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
        return f"ipc:///proc/self/fd/{self._handles[-1]}"
