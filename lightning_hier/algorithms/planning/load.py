"""What a piece of communication asks of a host: its card, its memory, its processor."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lightning_hier.algorithms.planning.network import Network


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work on the busiest host, all its ranks together.

    Loads add up. Their parts are different machines, which work at the same time when the whole
    goes through them piece by piece.

    Attributes:
        latency_s: of messages that wait for each other.
        card_bytes: that the host sends to others; it receives as many.
        home_bytes: that its busiest rank sends to others of the host.
        copied_bytes: gone through in memory, in copies that take as long.
        socket_bytes: sent and received, over all ranks of the host.

    """

    latency_s: float = 0.0
    card_bytes: float = 0.0
    home_bytes: float = 0.0
    copied_bytes: float = 0.0
    socket_bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        """Both."""
        pairs = {
            own.name: getattr(self, own.name) + getattr(other, own.name) for own in fields(self)
        }
        return Load(**pairs)

    def __mul__(self, factor: float) -> Load:
        """So many of it, one after the other."""
        return Load(**{own.name: factor * getattr(self, own.name) for own in fields(self)})

    def processor_s(self, network: Network) -> float:
        """How long the ranks of the host are busy with it."""
        return network.processor.seconds(
            copied=self.copied_bytes, through_sockets=self.socket_bytes, ranks=network.devices
        )

    def seconds(self, network: Network, *, pieces: float = 1.0) -> float:
        """How long it takes.

        Card, home and processor work side by side, on different pieces: the busiest of them is
        never idle, and the first or the last piece goes through the others alone.

        Args:
            network: whose host.
            pieces: into which it is cut; 1 is one thing after the other.

        """
        parts = (
            self.card_bytes / network.between.bytes_per_second,
            self.home_bytes / network.within.bytes_per_second,
            self.processor_s(network),
        )
        longest = max(parts)
        return self.latency_s + longest + (sum(parts) - longest) / max(pieces, 1.0)
