"""Placement of groups on hosts, and the ranks that exchange models between groups."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.planning.collectives import RankGroup
from lightning_hier.planning.inputs import Network
from lightning_hier.planning.prediction import Settings


@dataclass(frozen=True)
class Layout:
    """Groups of consecutive ranks.

    Attributes:
        network: the hosts.
        settings: settings, whose ``group_size`` and ``across`` count.

    Raises:
        ValueError: groups neither divide a host nor consist of whole hosts.

    """

    network: Network
    settings: Settings

    def __post_init__(self) -> None:
        devices, size = self.network.devices, self.settings.group_size
        # Then all hosts have the same load, and that of one host is enough.
        if self.network.ranks % size or (devices % size and size % devices):
            sizes = [n for n in range(1, devices + 1) if devices % n == 0]
            sizes += [n * devices for n in range(2, 17) if self.network.hosts % n == 0]
            raise ValueError(
                f"group_size must divide the {devices} devices of a host, or be a number of whole "
                f"hosts that divides {self.network.hosts}, got {size}; sizes that do: "
                f"{', '.join(map(str, sizes))}"
            )

    @property
    def models(self) -> int:
        """Number of groups."""
        return self.network.ranks // self.settings.group_size

    @property
    def groups_per_host(self) -> int:
        """Number of groups with ranks on one host."""
        return max(self.network.devices // self.settings.group_size, 1)

    @property
    def group(self) -> RankGroup:
        """The ranks of one group."""
        size = self.settings.group_size
        hosts = max(size // self.network.devices, 1)
        return self._ranks(size, hosts, self.groups_per_host)

    @property
    def inter_host_ranks(self) -> int:
        """Ranks of a group on one host that exchange models with other groups."""
        is_leader = self.settings.across == "leader"
        return 1 if is_leader else min(self.settings.group_size, self.network.devices)

    @property
    def within_host(self) -> RankGroup | None:
        """Ranks of a host that sum their models before one rank sends the sum to other hosts.

        None if there is one host, or one group on each host.
        """
        if self.network.hosts == 1 or self.groups_per_host == 1:
            return None
        return self._ranks(self.groups_per_host, 1, self.inter_host_ranks)

    @property
    def between_hosts(self) -> RankGroup:
        """Ranks that exchange models between hosts, or between groups if there is one host."""
        hosts = self.network.hosts
        size = self.models if self.within_host is None else hosts
        # Each of them is on a host of its own, also if a group spans several hosts.
        return self._ranks(size, 1 if hosts == 1 else size, self.inter_host_ranks)

    def _ranks(self, size: int, hosts: int, concurrent: int) -> RankGroup:
        link = self.network.within if hosts == 1 else self.network.between
        return RankGroup(size=size, latency_s=link.latency_s, hosts=hosts, concurrent=concurrent)
