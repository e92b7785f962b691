"""Authentication of ranks: CURVE keys between hosts and tokens inside a host, for one run.

Between hosts, only holders of the ranks' CURVE keys can connect (ZeroMQ's ZAP protocol).
"""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from lightning_hier.parameter_server.refusals import Refusals, Refused

ZAP_DOMAIN = b"lightning_hier"
# Endpoint and version are fixed by ZeroMQ.
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_MONITOR_ENDPOINT = "inproc://handshakes"
# Time limit for early connections that wait for the keys of the job.
_ADMISSION_LIMIT_S = 60.0
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # the third event, a refused key, is counted where it is refused
_TOKEN_BYTES = 16


@dataclass(frozen=True)
class Credentials:
    """Credentials of a rank. Keys are in ZeroMQ's printable form."""

    token: str
    public_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def make(cls) -> Credentials:
        """Create new credentials."""
        public_key, secret_key = zmq.curve_keypair()
        return cls(secrets.token_hex(_TOKEN_BYTES), public_key.decode(), secret_key.decode())


@dataclass(frozen=True)
class Contact:
    """Public data of a rank, exchanged over the process group at the start.

    Attributes:
        rank: number of the rank.
        host: equal text for ranks that can connect by ``ipc``.
        token: authenticates the rank to servers on its host.
        public_key: public key of CURVE.
        ipc: endpoint for ranks of its host.
        tcp: endpoint for ranks of other hosts.

    """

    rank: int
    host: str
    token: str
    public_key: str
    ipc: str | None = None
    tcp: str | None = None


def routing_id(contact: Contact, name: str) -> bytes:
    """Routing id of a connection of a rank."""
    return f"{contact.token}/{contact.rank}/{name}".encode()


class Register:
    """The contacts of all ranks."""

    def __init__(self, rank: int, contacts: Sequence[Contact]) -> None:
        """Register ``contacts``, in order of rank, on ``rank``."""
        self.rank = rank
        self.contacts = list(contacts)
        self.ranks_by_key = {contact.public_key: contact.rank for contact in contacts}

    @property
    def own(self) -> Contact:
        """Contact of this rank."""
        return self.contacts[self.rank]

    def is_near(self, rank: int) -> bool:
        """Whether a rank is on this rank's host."""
        return self.contacts[rank].host == self.own.host

    def sender(self, address: bytes, authenticated: str | None) -> int:
        """The rank that sent a message.

        Args:
            address: routing id of the connection.
            authenticated: owner of the connection's CURVE key. None for a connection inside the
                host.

        Raises:
            Refused: the sender is not a rank, or uses the name of another rank.

        """
        # A stranger may send any bytes, and latin-1 decodes all of them.
        token, _, rest = address.decode("latin-1").partition("/")
        number = rest.partition("/")[0]
        # int() accepts other digits too, and refuses very long numbers by an exception.
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise Refused("stranger", "somebody without a name")
        rank = int(number)
        if authenticated is not None and authenticated != str(rank):
            raise Refused("impostor", f"rank {authenticated} as rank {rank}")
        if rank >= len(self.contacts) or not hmac.compare_digest(
            token.encode(), self.contacts[rank].token.encode()
        ):
            raise Refused("stranger", f"somebody as rank {rank}")
        if authenticated is None and not self.is_near(rank):
            raise Refused("impostor", f"somebody on this host as rank {rank}")
        return rank


class Authenticator:
    """Answers the ZAP requests of a context in a separate thread.

    The answer names the owner of the key, and every message of the connection contains this name.
    The thread also counts failed handshakes of the server's socket, so that a flood of them does
    not occupy the server loop. It ends with the context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusals: Refusals) -> None:
        """Answer requests from now on. They wait for :meth:`admit`."""
        self._refusals = refusals
        self._ranks: Mapping[str, int] = {}
        self._known = threading.Event()
        self._requests = context.socket(zmq.REP)
        # The context must not wait at its end for an answer that nobody reads.
        self._requests.linger = 0
        self._requests.bind(_ZAP_ENDPOINT)
        self._handshakes = context.socket(zmq.PAIR)
        self._handshakes.linger = 0
        self._thread = threading.Thread(target=self._run, name="authenticator", daemon=True)

    def start(self, server: zmq.Socket[bytes]) -> None:
        """Start the thread. Must be called before ``server`` is bound, to count all handshakes."""
        server.monitor(_MONITOR_ENDPOINT, _FAILED_HANDSHAKES)
        self._handshakes.connect(_MONITOR_ENDPOINT)
        self._thread.start()

    def admit(self, ranks_by_key: Mapping[str, int]) -> None:
        """Admit the holders of these public keys as these ranks."""
        self._ranks = ranks_by_key
        self._known.set()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._handshakes, zmq.POLLIN)
        try:
            # Without a time limit: the end of the context ends the wait by an exception.
            while True:
                for socket, _ in poller.poll():
                    if socket is self._requests:
                        self._answer(self._requests.recv_multipart())
                    else:
                        self._count(self._handshakes.recv_multipart())
        except zmq.ContextTerminated:
            pass
        finally:
            self._requests.close()
            self._handshakes.close()

    def _answer(self, request: list[bytes]) -> None:
        # ZAP (ZeroMQ RFC 27): version, request, domain, address, routing id, mechanism, public key.
        version, number, _, address, _, mechanism, *proof = request
        rank = None
        if version == _ZAP_VERSION and mechanism == b"CURVE" and len(proof) == 1:
            # Other ranks may connect before this one has received the keys.
            self._known.wait(_ADMISSION_LIMIT_S)
            rank = self._ranks.get(z85.encode(proof[0]).decode())
        if rank is None:
            self._refusals.add(Refused("unknown_key", address.decode("latin-1")))
            status = [b"400", b"not a rank of this job", b"", b""]
        else:
            status = [b"200", b"OK", str(rank).encode(), b""]
        self._requests.send_multipart([_ZAP_VERSION, number, *status])

    def _count(self, event: list[bytes]) -> None:
        number, value = struct.unpack("=HI", event[0])
        endpoint = event[1].decode("latin-1")
        detail = f"event {number}, value {value}"
        self._refusals.add(Refused("handshake", f"a peer of {endpoint}", detail))
