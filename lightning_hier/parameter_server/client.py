"""The main thread's side: messages to other ranks' servants, and waits that always end."""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_hier.comm.roll_call import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import ClientPort, Received
from lightning_hier.parameter_server.server_loop import ServerLoop

# Conditions of a wait may depend on the time, or on what the server_loop's thread has noticed.
_LONGEST_POLL_S = 0.02


class Client:
    """Sends for one thread, hands what arrives to handlers, and waits.

    Args:
        port: used by one thread alone.
        server_loop: of this rank; its failure is raised in every wait.
        timeout_s: limit of a wait, in seconds.
        on_waited: gets the seconds of every wait.

    """

    def __init__(
        self,
        port: ClientPort,
        server_loop: ServerLoop,
        *,
        timeout_s: float,
        on_waited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._port = port
        self._server_loop = server_loop
        self._timeout_s = timeout_s
        self._on_waited = on_waited
        self._handlers: dict[Kind, Callable[[Received], None]] = {Kind.EXPELLED: _expelled}
        self._when_gone: list[Callable[[int], None]] = []
        self._told: set[int] = set()

    def on_port(self, port: ClientPort) -> Client:
        """A client for another thread of this rank, with a port of its own."""
        return Client(port, self._server_loop, timeout_s=self._timeout_s)

    def on(self, kind: Kind, handler: Callable[[Received], None]) -> None:
        """Have ``handler`` called with every message of a kind, within :meth:`poll`."""
        self._handlers[kind] = handler

    def on_gone(self, handler: Callable[[int], None]) -> None:
        """Have ``handler`` called once with every rank that is gone, within :meth:`poll`."""
        self._when_gone.append(handler)

    def gone(self) -> set[int]:
        """Ranks that have been lost or have left."""
        return self._server_loop.gone()

    def lost(self) -> dict[int, str]:
        """Ranks that have been lost, and why."""
        return self._server_loop.lost()

    def send(self, rank: int, message: Message) -> bool:
        """Send without waiting; False if the peer is gone or takes nothing more for now."""
        return self._port.send(rank, message)

    def is_sending(self, rank: int, kind: Kind, block: int) -> bool:
        """Whether some of a large message of this kind about this block has not left yet."""
        return self._port.is_sending(rank, kind, block)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle one message if there is one within ``timeout_s`` seconds; tell whether.

        Raises:
            RuntimeError: what has ended this rank's server_loop, or that the others have given up
                this rank.

        """
        self._server_loop.check()
        for rank in sorted(self.gone() - self._told):
            self._told.add(rank)
            for tell in self._when_gone:
                tell(rank)
        received = self._port.receive(timeout_s)
        if received is None:
            return False
        handler = self._handlers.get(received.message.kind)
        if handler is not None:
            handler(received)
        return True

    def wait(
        self,
        done: Callable[[], bool],
        missing: Callable[[], str],
        *,
        limit_s: float | None = None,
    ) -> float:
        """Handle messages until ``done()``, and return the seconds that this took.

        Args:
            done: asked after every message, and 50 times a second.
            missing: says at the limit what was waited for and which ranks are missing.
            limit_s: in seconds; None: that of this client.

        Raises:
            PeerError: the limit has passed.
            RuntimeError: as :meth:`poll`.

        """
        begun = time.monotonic()
        limit = self._timeout_s if limit_s is None else limit_s
        while not done():
            left = begun + limit - time.monotonic()
            if left <= 0:
                raise PeerError(f"after {limit:g} s: {missing()}")
            self.poll(min(_LONGEST_POLL_S, left))
        waited_s = time.monotonic() - begun
        self._on_waited(waited_s)
        return waited_s


def _expelled(received: Received) -> None:
    reason = received.message.facts.get("reason", "it was silent")
    raise PeerError(
        f"the other ranks go on without this one: rank {received.sender} had lost it ({reason}). "
        "A rank that cannot be reached for grace_s can't come back. Look at its host and network, "
        "and set grace_s to more than such interruptions take."
    )
