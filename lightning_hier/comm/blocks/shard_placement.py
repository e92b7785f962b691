"""Who carries the model across groups: one leader, or every rank of the group a share of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.block_sync import Across
from lightning_hier.comm.channel import Channel, Pending


class ShardPlacement(Protocol):
    """How the ranks of a group divide a flat model between them."""

    def share(self, numel: int) -> slice:
        """The elements that this rank exchanges with the other groups."""

    def padded(self, numel: int) -> int:
        """Length of the transfer buffer."""

    def longest(self, numel: int) -> int:
        """Elements of the longest share of a rank of this group."""

    def distribute(self, buffer: Tensor, start: int, stop: int) -> Sequence[Pending]:
        """Hand ``start`` to ``stop`` of every share round inside the group, into ``buffer``.

        A collective of the group, which must not be empty-handed: ``stop`` is at most
        :meth:`longest`.
        """

    def spans(self, start: int, stop: int, numel: int) -> list[slice]:
        """Where ``start`` to ``stop`` of every share lies in the whole."""


class LeaderPlacement:
    """The first rank of each group carries everything (two_tiered_bmuf_gtc 2.3)."""

    def __init__(self, group: Channel) -> None:
        """Hand round inside ``group``."""
        self._group = group

    def share(self, numel: int) -> slice:
        """Everything for the leader, nothing for the others."""
        return slice(0, numel) if self._group.position == 0 else slice(0, 0)

    def padded(self, numel: int) -> int:
        """No padding."""
        return numel

    def longest(self, numel: int) -> int:
        """That of the leader."""
        return numel

    def distribute(self, buffer: Tensor, start: int, stop: int) -> Sequence[Pending]:
        """Broadcast from the leader."""
        if self._group.size == 1:
            return ()
        return (self._group.broadcast_(buffer[start:stop], "models"),)

    def spans(self, start: int, stop: int, numel: int) -> list[slice]:
        """One, in the leader's share."""
        return [slice(start, stop)]


class ShardedPlacement:
    """Every rank of a group carries an equal share: 1/P of the state each, all nics at work."""

    def __init__(self, group: Channel) -> None:
        """Divide among the ranks of ``group``."""
        self._group = group

    def share(self, numel: int) -> slice:
        """The share of this rank's position; the last ones may be short or empty."""
        each = self._each(numel)
        start = min(self._group.position * each, numel)
        return slice(start, min(start + each, numel))

    def padded(self, numel: int) -> int:
        """Equal shares for all, since gathers need equal lengths."""
        return self._each(numel) * self._group.size

    def longest(self, numel: int) -> int:
        """That of the first rank."""
        return self._each(numel)

    def distribute(self, buffer: Tensor, start: int, stop: int) -> Sequence[Pending]:
        """Gather the shares."""
        if self._group.size == 1:
            return ()
        shares = buffer.view(self._group.size, -1)[:, start:stop].unbind()
        return (self._group.gather_into(shares, shares[self._group.position], "models"),)

    def spans(self, start: int, stop: int, numel: int) -> list[slice]:
        """One in the share of each rank, where it is that long."""
        each = self._each(numel)
        edges = [(rank * each + start, rank * each + stop) for rank in range(self._group.size)]
        return [slice(low, min(high, numel)) for low, high in edges if low < numel]

    def _each(self, numel: int) -> int:
        return -(-numel // self._group.size)


def make_placement(across: Across, group: Channel, *, nics: int | None) -> ShardPlacement:
    """The placement for a setting.

    ``"auto"``: sharded where the ranks of a group can send at the same time (they share one host
    with all other groups, so there is no card to queue for, or the host has a network card for
    each of them), otherwise leader. A leader is faster where the ranks share one card, because it
    sends each element once instead of a share of every rank's.

    Args:
        across: the setting.
        group: the ranks of this group.
        nics: the smallest number of network nics of any host, or None where one host runs all
            ranks. Must be the same on all ranks.

    """
    if across == "auto":
        across = "sharded" if nics is None or nics >= group.size else "leader"
    return ShardedPlacement(group) if across == "sharded" else LeaderPlacement(group)


def fewest_nics(device: torch.device) -> int:
    """The smallest number of network nics of any host. A collective of the world."""
    return min(int(nics) for nics in gather_json(count_nics(), device))


def count_nics(root: Path = Path("/sys/class")) -> int:
    """Network nics of this host that are up and are hardware, InfiniBand ports included."""
    ethernet = [
        card
        for card in root.glob("net/*")
        if (card / "device").exists() and _text(card / "operstate") == "up"
    ]
    infiniband = [
        port for port in root.glob("infiniband/*/ports/*") if "ACTIVE" in _text(port / "state")
    ]
    # An InfiniBand port shows up among the network interfaces too where IP runs over it.
    return max(len(ethernet), len(infiniband), 1)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
