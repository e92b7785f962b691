"""Groups of the ranks of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed.device_mesh import DeviceMesh

from lightning_hier.comm.blocks.shard_placement import fewest_nics
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.process_groups import SHARED
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.strategies import launch

if TYPE_CHECKING:
    from lightning_hier.strategies.tiered import TieredStrategy


class RankGroups:
    """Sizes and process groups. Properties require that the environment is set up.

    Args:
        strategy: strategy of this rank.
        group_size: ranks of one group: a number, ``"node"`` or ``"world"``.

    """

    def __init__(self, strategy: TieredStrategy, group_size: GroupSize) -> None:
        self._strategy = strategy
        self._group_size = group_size
        self._communicators: Communicators | None = None
        self._generation = 0

    @property
    def size(self) -> int:
        """Ranks of one group."""
        if self._group_size == "node":
            return self._strategy.num_processes
        return self._strategy.world_size if self._group_size == "world" else self._group_size

    @property
    def layout(self) -> RankLayout:
        """Assignment of ranks to groups. Raises ValueError if they cannot be divided."""
        return RankLayout.two_tiers(self.size, self._strategy.world_size)

    @property
    def communicators(self) -> Communicators:
        """Process groups and rank layout. Raises RuntimeError before :meth:`build`."""
        if self._communicators is None:
            raise RuntimeError("there are no process groups before the Trainer starts")
        return self._communicators

    def fewest_nics(self) -> int | None:
        """Smallest number of NICs of any host, or None for one host.

        A collective of the world: every rank must call it.
        """
        strategy = self._strategy
        # Equal on all ranks, so that all of them or none call the collective below.
        if strategy.num_processes == strategy.world_size:
            return None
        return fewest_nics(strategy.root_device)

    def describe(self) -> dict[str, Any]:
        """Numbers of ranks, hosts and groups, by name."""
        ranks = self._strategy.world_size
        return {
            "ranks": ranks,
            "ranks_per_device": self._strategy.ranks_per_device,
            "hosts": ranks // self._strategy.num_processes,
            "groups": self.layout.sizes[1],
            "ranks_per_group": self.layout.sizes[0],
        }

    def check_division(self, hosts: Sequence[int]) -> None:
        """Raise ValueError if the ranks on these hosts cannot be divided into the groups."""
        if self._group_size == "node":
            launch.check_hosts(hosts)
        _ = self.layout  # which checks the numbers

    def are_built(self, generation: int) -> bool:
        """Whether the process groups of ``generation`` exist."""
        return self._communicators is not None and self._generation == generation

    def build(
        self, generation: int, hosts: Sequence[int], *, timeout: timedelta, traffic: Traffic
    ) -> None:
        """Create the process groups. A collective of the world: every rank must call it."""
        strategy = self._strategy
        self._generation = generation
        self._communicators = Communicators.build(
            self.layout,
            device=strategy.root_device,
            timeout=timeout,
            traffic=traffic,
            host_of=hosts,
            process_groups=SHARED,
        )

    def mesh(self, tensor_parallel_size: int, *, timeout: timedelta) -> DeviceMesh:
        """Mesh of this rank's group, for a divided module. A collective of the world."""
        layout, rank = self.communicators.layout, self._strategy.global_rank
        groups: dict[str, Any] = {}
        # Tensor-parallel ranks are consecutive, close together: every layer communicates.
        grids = layout.grid().view(layout.sizes[1], -1, tensor_parallel_size)
        for name, rows in (
            ("data_parallel", [column for grid in grids for column in grid.T]),
            ("tensor_parallel", [row for grid in grids for row in grid]),
        ):
            for ranks in rows:  # those of all groups, because all ranks must create every group
                group = SHARED.of(ranks.tolist(), timeout, name)
                if rank in ranks:
                    groups[name] = group
        return DeviceMesh.from_group(
            list(groups.values()),
            self._strategy.root_device.type,
            mesh=grids[layout.coordinates(rank)[1]],
            mesh_dim_names=tuple(groups),
        )

    def forget(self) -> None:
        """Drop all references to process groups."""
        self._communicators = None
