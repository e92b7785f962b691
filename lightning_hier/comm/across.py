"""Process groups that average models, host by host where that saves bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.stages import OverlapQueue
from lightning_hier.comm.tiers import RankLayout


@dataclass(frozen=True)
class AcrossRoute:
    """Ranks through which this rank averages its shard of the model with other groups.

    Where several groups have ranks on one host, their models are summed there first, one rank of
    each host exchanges the sum with the other hosts, and broadcasts the result on its host. So a
    link between hosts transfers a model once, and not once for each group on the host.

    These process groups are used for models alone, so that an overlapped synchronisation can't be
    mixed up with other collectives.

    Attributes:
        between: ranks that exchange between hosts; None if another rank of this host does, and if
            there is one model only.
        host: averaging ranks of this host; None if each is alone on its host, or all are on one.
        inter_host_ranks: number of ranks in ``between``, also where that is None.
        hosts_are_shared: whether some host has several averaging ranks; the same on all of them.
        in_flight: overlapped synchronisations of all blocks.

    """

    between: Channel | None
    host: Channel | None
    inter_host_ranks: int
    hosts_are_shared: bool = False
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
        make: creates the process group of some ranks under a name; a collective of the world.
            Returns its channel, or None on a rank that is not in it.

    """
    if layout.sizes[1] == 1:
        return AcrossRoute(None, None, 1)
    found = [_build(ranks, by_host(ranks, host_of), make) for ranks in layout.groups(1)]
    return next(route for route in found if route is not None)


def by_host(ranks: Sequence[int], host_of: Sequence[int]) -> list[list[int]]:
    """Ranks by host; each alone if all are on one host, where summing first saves nothing."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        hosts[host_of[rank]].append(rank)
    return [[rank] for rank in ranks] if len(hosts) == 1 else list(hosts.values())


def _build(
    ranks: Sequence[int],
    hosts: Sequence[Sequence[int]],
    make: Callable[[Sequence[int], str], Channel | None],
) -> AcrossRoute | None:
    between = make([own[0] for own in hosts], "between_hosts")
    shared = [make(own, "on_host") for own in hosts if len(own) > 1]
    host = next((channel for channel in shared if channel is not None), None)
    if between is None and host is None:
        return None
    return AcrossRoute(between, host, len(hosts), hosts_are_shared=len(hosts) < len(ranks))
