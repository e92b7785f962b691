"""Channels of a rank: its group, its peers in the other groups, and the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module

from lightning_hier.comm.across import AcrossRoute, build_route
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.process_groups import ProcessGroups
from lightning_hier.comm.progress_record import ProgressRecord, progress_record
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.comm.tiers import RankLayout, build_mesh
from lightning_hier.comm.traffic import Tier, Traffic


@dataclass
class Communicators:
    """Channels of one rank.

    Attributes:
        layout: rank layout, group tier first.
        mesh: the process groups as a DeviceMesh with the dimensions ``across`` and ``group``.
        group: ranks of this rank's group.
        across: ranks at this rank's position in all groups.
        world: all ranks, counted as tier ``across``.
        route: process groups that average models over ``across``.
        traffic: traffic counts of this rank.
        progress: progress record of all ranks, for errors that name missing ranks.
        device: device of tensors in collectives.
        most_groups: if groups come and go, their largest number. Every job is then a group, and
            ``layout`` and ``world`` have this group only, except while groups synchronise.

    """

    layout: RankLayout
    mesh: DeviceMesh
    group: Channel
    across: Channel
    world: Channel
    route: AcrossRoute
    traffic: Traffic
    progress: ProgressRecord
    device: torch.device
    most_groups: int | None = None

    @property
    def models(self) -> int:
        """Number of models that a synchronisation of all groups averages."""
        # With groups that come and go, `layout` has only those that are connected now.
        return self.most_groups or self.layout.sizes[1]

    def replicas(self, module: Module) -> Channel:
        """Ranks that hold the same tensors of ``module``: all, or those with the same shards."""
        return self.across if is_sharded(module) else self.world

    def in_group(self, group: dist.ProcessGroup) -> Channel:
        """Channel of some ranks of this rank's group, such as a dimension of its mesh."""
        return Channel(group, "group", self.traffic, self.progress)

    @classmethod
    def build(
        cls,
        layout: RankLayout,
        *,
        device: torch.device,
        timeout: timedelta,
        traffic: Traffic,
        host_of: Sequence[int] | None = None,
        process_groups: ProcessGroups | None = None,
        own_world: bool = False,
    ) -> Communicators:
        """Create the process groups. Every rank must call it, after ``init_process_group``.

        Args:
            layout: rank layout of two tiers.
            device: the device of this rank's model.
            timeout: time limit of every collective.
            traffic: traffic counts of this rank.
            host_of: host number of each rank, the same on all ranks. None: all are on one host.
            process_groups: keeps the groups for later fits of the process. None: not kept.
            own_world: whether collectives of the world use a process group of their own, instead of
                the default one, in which the user's own collectives may run meanwhile.

        """
        progress = progress_record()
        # With a short time limit, other ranks fail soon too, and their records arrive soon.
        progress.grace_s = min(5.0, timeout.total_seconds() / 2)
        groups = process_groups or ProcessGroups()
        rank = dist.get_rank()

        def channel(group: dist.ProcessGroup, tier: Tier) -> Channel:
            return Channel(group, tier, traffic, progress)

        # torch creates a group on all ranks of the world, also on those that are not members. The
        # route counts as "across", also its ranks of one host.
        def subgroup(ranks: Sequence[int], name: str) -> Channel | None:
            group = groups.of(ranks, timeout, name)
            return channel(group, "across") if rank in ranks else None

        # A world of one group crosses no tier.
        world_tier: Tier = "across" if layout.sizes[1] > 1 else "group"
        with progress.at("the creation of process groups"):
            mesh = build_mesh(
                layout,
                device_type=device.type,
                timeout=timeout,
                process_groups=groups,
            )
            route = build_route(layout, host_of or [0] * layout.world_size, subgroup)
            world = dist.group.WORLD
            if own_world:
                world = groups.of(range(layout.world_size), timeout, "world")
            assert world is not None, "init_process_group has been called"
        return cls(
            layout=layout,
            mesh=mesh,
            group=channel(mesh.get_group("group"), "group"),
            across=channel(mesh.get_group("across"), "across"),
            world=channel(world, world_tier),
            route=route,
            traffic=traffic,
            progress=progress,
            device=device,
        )
