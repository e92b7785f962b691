"""Process groups of a rank: its group, its peers in the other groups, the world, and the route."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.process_groups import ProcessGroups
from lightning_hier.comm.progress_record import ProgressRecord, progress_record
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.comm.stages import OverlapQueue
from lightning_hier.comm.tiers import RankLayout, by_host
from lightning_hier.comm.traffic import TIERS, Tier, Traffic


@dataclass
class AcrossRoute:
    """Ranks through which this rank averages its shard of the model with other groups.

    If several groups have ranks on one host, they first sum their models on this host. One rank of
    each host exchanges the sum with the other hosts and broadcasts the result on its host. A link
    between hosts therefore transfers a model once, and not once for each group on the host.

    These process groups are used for models only, so that the collectives of an overlapped
    synchronisation do not interleave with other collectives.

    Attributes:
        between: ranks that exchange between hosts. None if another rank of this host is one of
            them, or if there is only one model.
        host: averaging ranks of this host. None if this host has one, or if there is one host.
        inter_host_ranks: number of ranks that exchange between hosts, also on ranks that do not.
            It changes if groups come and go.
        hosts_are_shared: whether any host has several averaging ranks. The same on all ranks.
        one_host: whether all ranks that average are known to be on one host.
        in_flight: overlapped synchronisations of all blocks.

    """

    between: Channel | None
    host: Channel | None
    inter_host_ranks: int
    hosts_are_shared: bool = False
    one_host: bool = False
    in_flight: OverlapQueue = field(default_factory=OverlapQueue, compare=False, repr=False)


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
        groups, rank = process_groups or ProcessGroups(), dist.get_rank()

        # torch creates a group on all ranks of the world, also on those that are not members.
        def channel(ranks: Sequence[int], name: str, tier: Tier) -> Channel | None:
            group = groups.of(ranks, timeout, name)
            return Channel(group, tier, traffic, progress) if rank in ranks else None

        with progress.at("the creation of process groups"):
            # All groups of both tiers, and of all routes, in one order.
            of_tiers = [
                channel(ranks, tier, tier) for tier in TIERS for ranks in layout.groups(tier)
            ]
            group, across = (own for own in of_tiers if own is not None)
            # The route counts as "across", also its ranks of one host.
            route = _route(
                layout,
                host_of or [0] * layout.world_size,
                lambda ranks, name: channel(ranks, name, "across"),
            )
            world = dist.group.WORLD
            if own_world:
                world = groups.of(range(layout.world_size), timeout, "world")
            assert world is not None, "init_process_group has been called"
            # A DeviceMesh has its outermost dimension first: each row of the grid is a group.
            mesh = DeviceMesh.from_group(
                [across.group, group.group],
                device.type,
                mesh=layout.grid(),
                mesh_dim_names=("across", "group"),
            )
        return cls(
            layout=layout,
            mesh=mesh,
            group=group,
            across=across,
            # A world of one group crosses no tier.
            world=Channel(world, "across" if layout.sizes[1] > 1 else "group", traffic, progress),
            route=route,
            traffic=traffic,
            progress=progress,
            device=device,
        )


def _route(
    layout: RankLayout,
    host_of: Sequence[int],
    channel: Callable[[Sequence[int], str], Channel | None],
) -> AcrossRoute:
    """Create the process groups of all routes. Every rank must call it.

    Args:
        layout: rank layout of two tiers.
        host_of: host number of each rank.
        channel: creates the process group of some ranks under a name. A collective of the world.
            Returns its channel, or None on a rank that is not a member.

    """
    route = AcrossRoute(None, None, 1)
    for ranks in layout.groups("across") if layout.sizes[1] > 1 else ():
        hosts = by_host(ranks, host_of)
        # The first rank of a host exchanges for it, because reduce_ and broadcast_ use position 0.
        between = channel([host[0] for host in hosts], "between_hosts")
        shared = [channel(host, "on_host") for host in hosts if len(host) > 1]
        host = next((own for own in shared if own is not None), None)
        if between is not None or host is not None:  # otherwise this rank is in another route
            route = AcrossRoute(
                between,
                host,
                len(hosts),
                hosts_are_shared=len(hosts) < len(ranks),
                one_host=len(set(host_of)) == 1,
            )
    return route
