"""Ranks in tiers, and one process group for each tier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lightning_hier.comm.process_groups import ProcessGroups

GroupSize = int | Literal["node", "world"]
"""Size of a group: a number, ``"node"`` (devices of a host) or ``"world"`` (all ranks)."""


def workers_per_group(group_size: GroupSize, per_host: int, in_all: int) -> int:
    """Convert a group size to a number of workers."""
    if group_size == "node":
        return per_host
    return in_all if group_size == "world" else group_size


@dataclass(frozen=True)
class WorkerLayout:
    """Assignment of the workers of groups to ranks, in order.

    Attributes:
        group_size: workers of one group.
        workers_per_rank: virtual workers of every rank.

    """

    group_size: int
    workers_per_rank: int

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: a group would start or end in the middle of a rank with several groups.

        """
        if self.group_size % self.workers_per_rank and self.workers_per_rank % self.group_size:
            raise ValueError(
                f"virtual_workers must divide group_size or be a multiple of it, got "
                f"virtual_workers={self.workers_per_rank} with group_size={self.group_size}"
            )

    @property
    def per_model(self) -> int:
        """Workers of one rank that share a model."""
        return min(self.group_size, self.workers_per_rank)

    @property
    def models_per_rank(self) -> int:
        """Models of different groups that every rank trains."""
        return self.workers_per_rank // self.per_model

    @property
    def ranks_per_group(self) -> int:
        """Ranks that share a model."""
        return self.group_size // self.per_model


@dataclass(frozen=True)
class RankLayout:
    """Numbering of ranks by a list of tier sizes, lowest tier first.

    ``RankLayout((P, M))``: groups of P consecutive ranks, M groups. The coordinate of a rank in
    tier 0 is its position in its group, in tier 1 the number of its group. The tier-k group of a
    rank consists of the ranks that differ from it only in coordinate k.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"every tier needs a size of at least 1, got {self.sizes}")

    @classmethod
    def two_tiers(cls, group_size: int, world_size: int, of: str = "ranks") -> RankLayout:
        """Groups of ``group_size`` ranks or workers. The size must divide the world.

        Raises:
            ValueError: the size does not divide the world. The error lists the sizes that do.

        """
        if group_size < 1 or world_size % group_size:
            sizes = [size for size in range(1, world_size + 1) if world_size % size == 0]
            raise ValueError(
                f"group_size must divide the number of {of}, got group_size={group_size} with "
                f"{world_size} {of}; sizes that do: {', '.join(map(str, sizes))}"
            )
        return cls((group_size, world_size // group_size))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinate of a rank in every tier."""
        found = []
        for size in self.sizes:
            rank, coordinate = divmod(rank, size)
            found.append(coordinate)
        return tuple(found)

    def rank(self, coordinates: tuple[int, ...]) -> int:
        """Rank at the given coordinates."""
        rank = 0
        for size, coordinate in zip(reversed(self.sizes), reversed(coordinates), strict=True):
            rank = rank * size + coordinate
        return rank

    def groups(self, tier: int) -> list[list[int]]:
        """All process groups of a tier, each as a list of ranks in order of their coordinate."""
        others = [range(size) for i, size in enumerate(self.sizes) if i != tier]
        found = []
        for fixed in product(*reversed(others)):
            rest = list(reversed(fixed))
            found.append(
                [
                    self.rank((*rest[:tier], coordinate, *rest[tier:]))
                    for coordinate in range(self.sizes[tier])
                ]
            )
        return found

    def members(self, tier: int, rank: int) -> list[int]:
        """Ranks of the tier's process group that contains the rank."""
        return next(ranks for ranks in self.groups(tier) if rank in ranks)

    def grid(self) -> torch.Tensor:
        """Ranks in the order of a DeviceMesh, with upper tiers first."""
        return torch.arange(self.world_size).view(*reversed(self.sizes))


def build_mesh(
    layout: RankLayout,
    names: tuple[str, ...],
    *,
    device_type: str,
    timeout: timedelta,
    process_groups: ProcessGroups,
) -> DeviceMesh:
    """Create the process groups of all tiers. Every rank of the world must call it.

    Args:
        layout: sizes, lowest tier first.
        names: a name for each tier, lowest first.
        device_type: ``"cpu"`` or ``"cuda"``.
        timeout: time limit of every collective of the groups.
        process_groups: keeps the groups for later fits.

    """
    own: list[dist.ProcessGroup] = []
    rank = dist.get_rank()
    for tier, name in enumerate(names):
        for ranks in layout.groups(tier):
            group = process_groups.of(ranks, timeout, name)
            if rank in ranks:
                own.append(group)
    return DeviceMesh.from_group(
        list(reversed(own)),
        device_type,
        mesh=layout.grid(),
        mesh_dim_names=tuple(reversed(names)),
    )
