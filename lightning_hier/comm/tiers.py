"""Ranks in tiers, and on hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.traffic import Tier

GroupSize = int | Literal["node", "world"]
"""Size of a group: a number, ``"node"`` (ranks of a host) or ``"world"`` (all ranks)."""


@dataclass(frozen=True)
class RankLayout:
    """Numbering of ranks: ``RankLayout((P, M))`` has M groups of P consecutive ranks.

    A rank has two coordinates: its position in its group, and the number of its group. A process
    group of tier ``across`` has the ranks at one position in all groups.

    Launchers number the ranks of a host consecutively, so the collectives of a group stay on one
    host if its size divides that of a host.

    Attributes:
        sizes: P and M.

    """

    sizes: tuple[int, int]

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.sizes) < 1:
            raise ValueError(f"every tier needs a size of at least 1, got {self.sizes}")

    @classmethod
    def two_tiers(cls, group_size: int, world_size: int) -> RankLayout:
        """Groups of ``group_size`` ranks; the size must divide the world.

        Args:
            group_size: number of ranks in a group.
            world_size: number of ranks.

        Raises:
            ValueError: it does not divide the world; the message lists the sizes that do.

        """
        if group_size < 1 or world_size % group_size:
            sizes = [size for size in range(1, world_size + 1) if world_size % size == 0]
            raise ValueError(
                f"group_size must divide the number of ranks, got group_size={group_size} with "
                f"{counted(world_size, 'rank')}; sizes that do: {', '.join(map(str, sizes))}"
            )
        return cls((group_size, world_size // group_size))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.sizes[0] * self.sizes[1]

    def coordinates(self, rank: int) -> tuple[int, int]:
        """Position of a rank in its group, and the number of the group."""
        group, position = divmod(rank, self.sizes[0])
        return position, group

    def groups(self, tier: Tier) -> list[list[int]]:
        """All process groups of a tier, each as its ranks in ascending order."""
        rows = self.grid() if tier == "group" else self.grid().T
        groups: list[list[int]] = rows.tolist()
        return groups

    def grid(self) -> torch.Tensor:
        """Ranks in the order of a DeviceMesh: a row for each group."""
        return torch.arange(self.world_size).view(self.sizes[1], self.sizes[0])


def by_host(ranks: Sequence[int], host_of: Sequence[int]) -> list[list[int]]:
    """Ranks by host. On a single host, each rank is separate, because there is no link to save."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        hosts[host_of[rank]].append(rank)
    return [[rank] for rank in ranks] if len(hosts) == 1 else list(hosts.values())
