"""What the collectives that the strategies use ask of a host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network


@dataclass(frozen=True, kw_only=True)
class Team:
    """Ranks that call a collective together, and others of their hosts that do the same.

    Attributes:
        size: ranks that call it together.
        hosts: over which they are spread, evenly and in order, so that a ring of them leaves every
            host once.
        at_once: teams that share the card of a host, each with its own collective.

    """

    size: int
    hosts: int = 1
    at_once: int = 1

    @property
    def per_host(self) -> float:
        """Ranks of one team on a host."""
        return self.size / self.hosts

    def latency_s(self, network: Network) -> float:
        """Of a message that everybody waits for."""
        return (network.within if self.hosts == 1 else network.between).latency_s

    def load(self, network: Network, *, passed: float, messages: float, added: float = 0.0) -> Load:
        """Of a ring in which every rank passes on so many bytes in so many rounds.

        Args:
            network: of the ranks.
            passed: bytes that a rank sends, and gets.
            messages: rounds, each of which waits for the one before it.
            added: bytes that a rank adds to its own.

        """
        callers = self.at_once * self.per_host
        return Load(
            latency_s=messages * self.latency_s(network),
            card_bytes=self.at_once * passed if self.hosts > 1 else 0.0,
            home_bytes=passed if self.per_host > 1 else 0.0,
            copied_bytes=callers * added,
            socket_bytes=2 * callers * passed,
        )


def all_reduce(nbytes: float, team: Team, network: Network) -> Load:
    """In a ring: 2 (n - 1) / n of the tensor from each of n ranks, in 2 (n - 1) rounds."""
    others = team.size - 1
    share = others / team.size * nbytes
    return team.load(network, passed=2 * share, messages=2 * others, added=share)


def all_gather(nbytes: float, team: Team, network: Network) -> Load:
    """Of ``nbytes`` from each rank: it passes on its own and those of all others but one."""
    others = team.size - 1
    return team.load(network, passed=others * nbytes, messages=others)


def all_to_all(nbytes: float, team: Team, network: Network) -> Load:
    """Each rank sends an equal part of ``nbytes`` to each; all messages are under way at once."""
    others = team.size - 1
    return team.load(network, passed=others / team.size * nbytes, messages=min(others, 1))


def reduce(nbytes: float, team: Team, network: Network) -> Load:
    """Sum into the first rank, which gets (n - 1) / n of it when every rank has added a part."""
    others = team.size - 1
    share = others / team.size * nbytes
    return team.load(network, passed=share, messages=2 * others, added=share)


def broadcast(nbytes: float, team: Team, network: Network) -> Load:
    """From the first rank, along a tree: it sends to as many others as the tree is deep."""
    rounds = math.ceil(math.log2(team.size))
    away = math.ceil(math.log2(team.hosts))
    reached = team.at_once * (team.size - 1) / team.hosts
    return Load(
        latency_s=rounds * team.latency_s(network),
        card_bytes=team.at_once * away * nbytes,
        home_bytes=(rounds - away) * nbytes,
        socket_bytes=2 * reached * nbytes,
    )
