"""Authentication of ranks: CURVE keys between hosts and tokens inside a host; refusals.

Keys and tokens are made for one run. Between hosts, only holders of the ranks' CURVE keys can
connect (ZeroMQ's ZAP protocol). Refusals are counted by reason, and logged once by reason and peer.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import zmq
from zmq.auth.thread import ThreadAuthenticator

# Time limit for early connections that wait for the keys of the job.
_ADMISSION_LIMIT_S = 60.0
_TOKEN_BYTES = 16
# A stranger can use any number of names, which must not fill the log.
_MOST_LOGGED = 1000

_log = logging.getLogger(__name__)

Reason = Literal["handshake", "unknown_key", "stranger", "impostor", "malformed"]


class Refused(Exception):
    """A received message or a connection was refused."""

    def __init__(self, reason: Reason, peer: str, detail: str = "") -> None:
        """Refuse a message of ``peer`` for ``reason``."""
        super().__init__(f"{peer}: {reason}")
        self.reason: Reason = reason
        self.peer = peer
        self.detail = detail


class Refusals:
    """Counts of refusals on a rank. Thread-safe.

    Reasons: ``handshake`` (not ZeroMQ, or without the job's encryption), ``unknown_key`` (a CURVE
    key that belongs to no rank), ``stranger`` (without the token of a rank), ``impostor`` (the key
    of one rank with the name of another) and ``malformed`` (see :mod:`.message`).
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def add(self, refused: Refused) -> None:
        """Count a refusal, and log the first one of its reason and peer."""
        reason, peer, detail = refused.reason, refused.peer, refused.detail
        with self._lock:
            self._counts[reason] += 1
            if (reason, peer) in self._logged or len(self._logged) >= _MOST_LOGGED:
                return
            self._logged.add((reason, peer))
        # Without the lock: a slow log must not stop the other threads.
        _log.warning("refused from %s: %s%s", peer, reason, f" ({detail})" if detail else "")

    def counts(self) -> dict[str, int]:
        """Number of refusals by reason."""
        with self._lock:
            return dict(self._counts)


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

    def sender(self, address: bytes, key: str | None) -> int:
        """The rank that sent a message.

        Args:
            address: routing id of the connection.
            key: CURVE key of the connection, which has been admitted. None for a connection inside
                the host.

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
        if key is not None and self.ranks_by_key.get(key) != rank:
            raise Refused("impostor", f"rank {self.ranks_by_key.get(key)} as rank {rank}")
        if rank >= len(self.contacts) or not hmac.compare_digest(
            token.encode(), self.contacts[rank].token.encode()
        ):
            raise Refused("stranger", f"somebody as rank {rank}")
        if key is None and not self.is_near(rank):
            raise Refused("impostor", f"somebody on this host as rank {rank}")
        return rank


class Authenticator:
    """Admits the ranks of the job to the sockets of a context with CURVE, in a thread.

    Connections wait for :meth:`admit`. Every message of an admitted one contains its key.

    Args:
        context: context of the sockets.
        refusals: counts unknown keys.

    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusals: Refusals) -> None:
        self._refusals = refusals
        self._ranks: Mapping[str, int] = {}
        self._known = threading.Event()
        self._thread = ThreadAuthenticator(context, log=_log)
        self._thread.start()
        self._thread.configure_curve_callback("*", self)

    def admit(self, ranks_by_key: Mapping[str, int]) -> None:
        """Admit the holders of these public keys as these ranks."""
        self._ranks = ranks_by_key
        self._known.set()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether to admit the holder of a public key. ZeroMQ's authenticator calls it."""
        # Other ranks may connect before this one has received the keys.
        self._known.wait(_ADMISSION_LIMIT_S)
        if key.decode() in self._ranks:
            return True
        self._refusals.add(Refused("unknown_key", f"somebody with the key {key.decode()}"))
        return False

    def close(self) -> None:
        """End the thread."""
        self.admit({})  # so that it does not wait for the keys
        self._thread.stop()
