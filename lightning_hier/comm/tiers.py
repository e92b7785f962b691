"""Ranks in tiers, and one process group for each tier."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.process_groups import ProcessGroups
from lightning_hier.comm.traffic import TIERS

GroupSize = int | Literal["node", "world"]
"""Size of a group: a number, ``"node"`` (ranks of a host) or ``"world"`` (all ranks)."""


@dataclass(frozen=True)
class RankLayout:
    """Numbering of ranks: ``RankLayout((P, M))`` has M groups of P consecutive ranks.

    A rank has two coordinates: its position in its group, and the number of its group. A process
    group of tier 0 is a group, and one of tier 1 has the ranks at one position in all groups.

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

    def groups(self, tier: int) -> list[list[int]]:
        """All process groups of a tier, each as its ranks in ascending order."""
        rows = self.grid() if tier == 0 else self.grid().T
        groups: list[list[int]] = rows.tolist()
        return groups

    def grid(self) -> torch.Tensor:
        """Ranks in the order of a DeviceMesh: a row for each group."""
        return torch.arange(self.world_size).view(self.sizes[1], self.sizes[0])


def build_mesh(
    layout: RankLayout,
    *,
    device_type: str,
    timeout: timedelta,
    process_groups: ProcessGroups,
) -> DeviceMesh:
    """Create the process groups of both tiers. Every rank of the world must call it.

    Args:
        layout: numbers of ranks and groups.
        device_type: ``"cpu"`` or ``"cuda"``.
        timeout: time limit of every collective of the groups.
        process_groups: keeps the groups for later fits.

    """
    groups: list[dist.ProcessGroup] = []
    rank = dist.get_rank()
    # All groups of both tiers in one order: torch creates a group on all ranks together.
    for tier, name in enumerate(TIERS):
        for ranks in layout.groups(tier):
            group = process_groups.of(ranks, timeout, name)
            if rank in ranks:
                groups.append(group)
    # A DeviceMesh has its outermost dimension first: each row of the grid is a group.
    return DeviceMesh.from_group(
        list(reversed(groups)),
        device_type,
        mesh=layout.grid(),
        mesh_dim_names=tuple(reversed(TIERS)),
    )
