"""How ranks know each other: CURVE keys between hosts, tokens inside one, made for one run."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from lightning_hier.parameter_server.refusals import Refused

_TOKEN_BYTES = 16


@dataclass(frozen=True)
class Credentials:
    """What a rank proves itself with. Keys are in ZeroMQ's printable form."""

    token: str
    public_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def make(cls) -> Credentials:
        """Fresh ones."""
        public_key, secret_key = zmq.curve_keypair()
        return cls(secrets.token_hex(_TOKEN_BYTES), public_key.decode(), secret_key.decode())


@dataclass(frozen=True)
class Contact:
    """What the others must know of a rank, as it goes over the process group at the start.

    Attributes:
        rank: its number.
        host: the same text for ranks that reach each other by ``ipc``.
        token: names the rank to servers of its own host.
        public_key: of CURVE.
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
    """How a connection of a rank names itself to a server."""
    return f"{contact.token}/{contact.rank}/{name}".encode()


class Register:
    """The ranks of the job as this rank knows them."""

    def __init__(self, rank: int, contacts: Sequence[Contact]) -> None:
        """Know ``contacts``, in order of rank, as ``rank``."""
        self.rank = rank
        self.contacts = list(contacts)
        self.ranks_by_key = {contact.public_key: contact.rank for contact in contacts}

    @property
    def own(self) -> Contact:
        """This rank itself."""
        return self.contacts[self.rank]

    def is_near(self, rank: int) -> bool:
        """Whether a rank is on this rank's host."""
        return self.contacts[rank].host == self.own.host

    def sender(self, address: bytes, authenticated: str | None) -> int:
        """The rank that a message came from.

        Args:
            address: routing id of the connection.
            authenticated: the rank that the connection's CURVE key belongs to; None for a
                connection inside the host.

        Raises:
            Refused: it is none, or not the one that it says it is.

        """
        token, _, rest = address.decode("latin-1").partition("/")
        number = rest.partition("/")[0]
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
