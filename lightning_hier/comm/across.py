"""How what the groups average travels between them: host by host where a host has several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.stages import OverlapQueue
from lightning_hier.comm.tiers import RankLayout


@dataclass(frozen=True)
class AcrossRoute:
    """The ranks through which this one averages its share of the model with other groups.

    Where several groups have ranks on one host, their models are added up there first, one rank of
    each host exchanges the sum with the other hosts, and hands the result round at home. A link
    between hosts then carries a model once, and not once for each group that ends there.

    These groups are used for models alone, so that what travels while a block is trained can't be
    mixed up with what is exchanged meanwhile.

    Attributes:
        between: the ranks that exchange between hosts; None where another rank of this host does,
            and where there is one model only.
        host: the averaging ranks of this host; None where each is alone on its host, or all are on
            one.
        inter_host_ranks: the number of ranks in ``between``, known also where that is None.
        hosts_are_shared: whether some host has several of the averaging ranks.
        in_flight: what is on its way while blocks are trained, of all blocks.

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
    """Create the groups of all routes. Every rank must call it.

    Args:
        layout: rank layout of two tiers.
        host_of: for each rank the number of its host.
        make: creates the process group of some ranks under a name; a collective of the world.
            Returns its channel, or None on a rank that is not in it.

    """
    if layout.sizes[1] == 1:
        return AcrossRoute(None, None, 1)
    found = [_build(ranks, teams_of(ranks, host_of), make) for ranks in layout.groups(1)]
    return next(route for route in found if route is not None)


def teams_of(ranks: Sequence[int], host_of: Sequence[int]) -> list[list[int]]:
    """The given ranks by host; each alone if going host by host saves nothing."""
    teams: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        teams[host_of[rank]].append(rank)
    return [[rank] for rank in ranks] if len(teams) == 1 else list(teams.values())


def _build(
    ranks: Sequence[int],
    teams: Sequence[Sequence[int]],
    make: Callable[[Sequence[int], str], Channel | None],
) -> AcrossRoute | None:
    between = make([team[0] for team in teams], "between_hosts")
    hosts_are_shared = [make(team, "on_host") for team in teams if len(team) > 1]
    host = next((channel for channel in hosts_are_shared if channel is not None), None)
    if between is None and host is None:
        return None
    return AcrossRoute(between, host, len(teams), hosts_are_shared=len(teams) < len(ranks))
