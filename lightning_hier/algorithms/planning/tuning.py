"""How to set what strategies have in common: a rule for each setting, which says why."""

from __future__ import annotations

import math

from lightning_hier.algorithms.arguments import check_share
from lightning_hier.algorithms.planning.ddp import step_with_all_reduce_s
from lightning_hier.algorithms.planning.gtc import GTCSettings, step_with_gtc_s
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.synchronisation import BlockSettings, synchronise
from lightning_hier.algorithms.planning.two_stage import cluster_of
from lightning_hier.algorithms.planning.workload import Workload

BLOCK_SIZES = (10, 400)
"""From what the papers train with: 8 to 400 steps. Shorter ones buy no accuracy, longer ones
cost some (two_tiered_bmuf_gtc, Table 2)."""

SHARE, OVERLAPPED_SHARE = 0.10, 0.03
"""Of a step that synchronisation may cost, and with overlap."""

# A density at which GTC costs this share of a step or less is as good as free.
_GRADIENT_SHARE = 0.05
DENSITIES = (0.03, 0.01, 0.003, 0.001)
# How often an element should be sent in a run at least, lest most of it be over before its
# gradients have arrived; a rule of thumb (docs/choosing.md).
_STEPS_FOR_GTC = 20
# Mini-batches of each device between two pushes, beyond which a plan says that it is no plan.
_LONG_PERIOD = 32


def recommend_group_size(workload: Workload, network: Network) -> tuple[int, str]:
    """Ranks that train one model together, and why.

    The devices of a host, since fewer models mean better averages, unless what they exchange at
    every step costs more than a tenth of it: then each trains its own.
    """
    devices = network.devices
    if devices == 1:
        return 1, "A host has one device, so every rank trains a model of its own."
    fastest_s = _fastest_group_step_s(workload, network, devices)
    cost = fastest_s / workload.disturbed_step_s - 1
    if cost > SHARE:
        return 1, (
            f"Inside a host gradients at every step would add {cost:.0%}: every rank trains a "
            "model of its own."
        )
    return devices, (
        f"The {devices} devices of a host train one model together, which adds {cost:.1%} to a "
        f"step and leaves {network.hosts} models to average instead of {network.ranks}."
    )


def recommend_density(
    workload: Workload, network: Network, group_size: int
) -> tuple[float | None, str]:
    """Share of the elements that GTC sends in a group, or None for all of them; and why."""
    if group_size == 1:
        return None, "A group of one rank sends no gradients."

    def cost(density: float | None) -> float:
        step_s = step_of_group_s(workload, network, group_size, density)
        return step_s / workload.disturbed_step_s - 1

    plain = cost(None)
    costs: dict[float, float] = {}
    for density in DENSITIES:
        costs[density] = cost(density)
        if costs[density] <= _GRADIENT_SHARE:
            break
    density = min(costs, key=lambda own: (costs[own] > _GRADIENT_SHARE, costs[own]))
    if plain <= max(_GRADIENT_SHARE, costs[density]):
        return None, f"Exact gradients add {plain:.1%} to a step in a group: nothing to compress."
    return density, (
        f"Exact gradients would add {plain:.0%} to a step in a group, a density of {density:g} "
        f"adds {costs[density]:.1%}. An element is then sent about every {1 / density:.0f} steps: "
        f"a run of fewer than {_STEPS_FOR_GTC / density:.0f} wants a larger density, and a warm-up."
    )


def recommend_block_size(
    workload: Workload,
    network: Network,
    settings: BlockSettings,
    step_s: float,
    *,
    share: float | None = None,
) -> tuple[int, str]:
    """Shortest block whose synchronisation costs at most a share of its steps, and why.

    Args:
        workload: what is trained.
        network: where.
        settings: of the blocks; their ``block_size`` is not looked at.
        step_s: between two synchronisations.
        share: of the steps; None: 10%, and 3% with overlap.

    Raises:
        ValueError: a share outside (0, 1].

    """
    if share is None:
        share = OVERLAPPED_SHARE if settings.overlap else SHARE
    check_share("share", share)
    found = synchronise(workload, network, settings)
    shortest, longest = BLOCK_SIZES
    if found.visible_s == 0:
        return shortest, "One group has nothing to average with."
    exact = found.visible_s / (share * step_s)
    if settings.overlap:
        # All that travels must be there by the end of the next block.
        exact = max(exact, found.travel_s / step_s)
    size = min(max(math.ceil(exact), shortest), longest)
    cost = found.visible_s + max(found.travel_s - size * step_s, 0.0) * settings.overlap
    said = (
        f"A synchronisation is waited for {found.visible_s:.3g} s, {found.visible_s / step_s:.1f} "
        f"steps: in blocks of {size} steps it costs {cost / (size * step_s):.1%}"
    )
    if math.ceil(exact) > longest:
        return size, f"{said}; for {share:.0%} a block would be {math.ceil(exact)} steps long."
    return size, f"{said}."


def recommend_push_period(workload: Workload, network: Network) -> tuple[int, str]:
    """N of two-stage ASGD at which T_calc = T_trans (eq. 6 and 7), and why."""
    cluster = cluster_of(workload, network)
    period = cluster.best_push_period() if network.hosts > 1 else 1
    said = (
        f"A node computes {period} mini-batches in {cluster.computation_seconds(period):.3g} s, "
        f"the least number for which that is no shorter than the "
        f"{cluster.transmission_seconds():.3g} s of an exchange."
    )
    if period > _LONG_PERIOD * network.devices:
        said += (
            " The paper has 2 mini-batches for each device of a node: one link to one master is "
            "too slow for so many nodes."
        )
    return period, said


def step_of_group_s(
    workload: Workload, network: Network, group_size: int, density: float | None
) -> float:
    """Seconds of a step of a group; None for exact gradients."""
    team = Placement(network=network, group_size=group_size).group
    if density is None:
        return step_with_all_reduce_s(workload, team, network)
    return step_with_gtc_s(workload, team, network, GTCSettings(density=density))


def _fastest_group_step_s(workload: Workload, network: Network, group_size: int) -> float:
    """Of exact and compressed gradients."""
    densities = (None, *DENSITIES)
    return min(step_of_group_s(workload, network, group_size, own) for own in densities)
