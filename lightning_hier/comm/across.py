"""Process groups that average models between groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.stages import OverlapQueue
from lightning_hier.comm.tiers import RankLayout


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


def build_route(
    layout: RankLayout,
    host_of: Sequence[int],
    make: Callable[[Sequence[int], str], Channel | None],
) -> AcrossRoute:
    """Create the process groups of all routes. Every rank must call it.

    Args:
        layout: rank layout of two tiers.
        host_of: host number of each rank.
        make: creates the process group of some ranks under a name. A collective of the world.
            Returns its channel, or None on a rank that is not a member.

    """
    if layout.sizes[1] == 1:
        return AcrossRoute(None, None, 1)
    # Also the routes of other ranks: torch creates a process group on all ranks together.
    one_host = len(set(host_of)) == 1
    routes = [
        _build(ranks, by_host(ranks, host_of), make, one_host=one_host)
        for ranks in layout.groups(1)
    ]
    return next(route for route in routes if route is not None)


def by_host(ranks: Sequence[int], host_of: Sequence[int]) -> list[list[int]]:
    """Ranks by host. On a single host, each rank is separate, because there is no link to save."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        hosts[host_of[rank]].append(rank)
    return [[rank] for rank in ranks] if len(hosts) == 1 else list(hosts.values())


def _build(
    ranks: Sequence[int],
    hosts: Sequence[Sequence[int]],
    make: Callable[[Sequence[int], str], Channel | None],
    *,
    one_host: bool,
) -> AcrossRoute | None:
    # The first rank of a host exchanges for it, because reduce_ and broadcast_ use position 0.
    between = make([host[0] for host in hosts], "between_hosts")
    shared = [make(host, "on_host") for host in hosts if len(host) > 1]
    host = next((channel for channel in shared if channel is not None), None)
    if between is None and host is None:  # this rank is in another route
        return None
    return AcrossRoute(
        between,
        host,
        len(hosts),
        hosts_are_shared=len(hosts) < len(ranks),
        one_host=one_host,
    )
