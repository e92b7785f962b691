"""Strategies that synchronise models at the end of blocks, whatever groups do at every step."""

from __future__ import annotations

from dataclasses import replace

from lightning_hier.algorithms.planning.ddp import gradient_load, step_with_all_reduce_s
from lightning_hier.algorithms.planning.gtc import (
    GTCSettings,
    gtc_memory_bytes,
    gtc_step,
    step_with_gtc_s,
)
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.steps import amortised_step_s
from lightning_hier.algorithms.planning.synchronisation import (
    BlockSettings,
    extra_memory_bytes,
    synchronise,
)
from lightning_hier.algorithms.planning.workload import Workload


def predict_blocks(
    workload: Workload,
    network: Network,
    settings: BlockSettings,
    gtc: GTCSettings | None = None,
    *,
    name: str = "hierarchical",
) -> Prediction:
    """Any combination of what groups do at a step and at the end of a block.

    Args:
        workload: what is trained.
        network: where.
        settings: of the blocks, and how large groups are.
        gtc: how a group's gradients are compressed; None averages them exactly.
        name: of the strategy.

    Raises:
        ValueError: groups that do not fit the hosts.

    """
    team = Placement(network=network, group_size=settings.group_size).group
    if gtc is None:
        step_s = step_with_all_reduce_s(workload, team, network)
        gradients = gradient_load(workload, team, network).card_bytes
        held = float(workload.gradient_bytes) if team.size > 1 else 0.0
    else:
        step_s = step_with_gtc_s(workload, team, network, gtc)
        found = gtc_step(workload, team, network, gtc)
        gradients = found.payload.card_bytes + found.counts.card_bytes
        held = gtc_memory_bytes(workload, team, gtc)
    block = synchronise(workload, network, settings)
    tau = settings.block_size
    step_s = amortised_step_s(
        step_s,
        block_size=tau,
        synchronisation_s=block.visible_s,
        travel_s=block.travel_s if settings.overlap else 0.0,
    )
    own = workload.model_bytes + workload.gradient_bytes + workload.state_bytes
    return Prediction(
        strategy=name,
        settings=_told(settings, gtc),
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_s,
        host_bytes=gradients + (block.host_bytes + block.small_bytes) / tau,
        memory_bytes=own + held + extra_memory_bytes(workload, network, settings),
    )


def predict_model_averaging(
    workload: Workload, network: Network, settings: BlockSettings
) -> Prediction:
    """`model_averaging`: every rank a worker, no block momentum."""
    plain = replace(settings, group_size=1, carried="model", block_momentum=False)
    return predict_blocks(workload, network, plain, name="model_averaging")


def predict_bmuf(workload: Workload, network: Network, settings: BlockSettings) -> Prediction:
    """`bmuf`: every rank a worker."""
    own = replace(settings, group_size=1)
    return predict_blocks(workload, network, own, name="bmuf")


def predict_bmuf_adam(workload: Workload, network: Network, settings: BlockSettings) -> Prediction:
    """`bmuf_adam`: every rank a worker, both moments travel with the model."""
    own = replace(settings, group_size=1, carried="moments", overlap=False)
    return predict_blocks(workload, network, own, name="bmuf_adam")


def predict_bmuf_gtc(
    workload: Workload, network: Network, settings: BlockSettings, gtc: GTCSettings | None = None
) -> Prediction:
    """`bmuf_gtc`: GTC inside groups, BMUF across them."""
    return predict_blocks(workload, network, settings, gtc or GTCSettings(), name="bmuf_gtc")


def _told(settings: BlockSettings, gtc: GTCSettings | None) -> dict[str, object]:
    """What differs from the defaults, and what everybody asks for."""
    told: dict[str, object] = {"block_size": settings.block_size}
    if settings.group_size > 1:
        told["group_size"] = settings.group_size
    if gtc is not None:
        told["density"] = gtc.density
    default = BlockSettings()
    for name in ("across_dtype", "overlap"):
        if (value := getattr(settings, name)) != getattr(default, name):
            told[name] = value
    return told
