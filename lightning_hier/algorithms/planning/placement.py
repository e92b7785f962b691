"""Where the ranks of a group are, and which ranks exchange what between groups."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.algorithms.planning.collectives import Team
from lightning_hier.algorithms.planning.network import Network


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Groups of consecutive ranks on the hosts of a network.

    Attributes:
        network: the hosts.
        group_size: P, ranks of a group.

    Raises:
        ValueError: the ranks do not divide into such groups, or a group would end in the middle
            of a host that it does not share out evenly.

    """

    network: Network
    group_size: int

    def __post_init__(self) -> None:
        """Check that groups fit the hosts."""
        check_whole("group_size", self.group_size)
        devices, size = self.network.devices, self.group_size
        fits = devices % size == 0 or size % devices == 0
        if self.network.ranks % size or not fits:
            sizes = [n for n in range(1, devices + 1) if devices % n == 0]
            sizes += [n * devices for n in range(2, 17) if self.network.hosts % n == 0]
            raise ValueError(
                f"group_size must divide the {devices} devices of a host, or be a number of whole "
                f"hosts that divides {self.network.hosts}, got {size}; sizes that do: "
                f"{', '.join(map(str, sizes))}"
            )

    @property
    def models(self) -> int:
        """M, groups: models that are averaged."""
        return self.network.ranks // self.group_size

    @property
    def groups_on_host(self) -> int:
        """Groups that have ranks on a host."""
        return max(self.network.devices // self.group_size, 1)

    @property
    def group(self) -> Team:
        """Ranks of a group."""
        return Team(
            size=self.group_size,
            hosts=max(self.group_size // self.network.devices, 1),
            at_once=self.groups_on_host,
        )

    @property
    def world(self) -> Team:
        """All ranks."""
        return Team(size=self.network.ranks, hosts=self.network.hosts)

    def carriers(self, *, sharded: bool) -> int:
        """Ranks of a group on one host that carry a part of the model to other groups."""
        return min(self.group_size, self.network.devices) if sharded else 1

    def at_home(self, *, sharded: bool) -> Team | None:
        """Ranks of a host that add up their models before one of them sends; None: each sends.

        That is so where there is one host, or one group on each.
        """
        if self.network.hosts == 1 or self.groups_on_host == 1:
            return None
        return Team(size=self.groups_on_host, at_once=self.carriers(sharded=sharded))

    def between(self, *, sharded: bool) -> Team:
        """Ranks that exchange models between hosts; on one host, between groups."""
        hosts = self.network.hosts
        spread = self.models if self.at_home(sharded=sharded) is None else hosts
        return Team(
            size=spread,
            hosts=1 if hosts == 1 else spread,
            at_once=self.carriers(sharded=sharded),
        )
