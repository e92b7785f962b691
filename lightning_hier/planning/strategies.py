"""Predictions for every strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning_hier.planning.collectives import RankGroup
from lightning_hier.planning.gradients import (
    divided_exchange,
    divided_step_s,
    exchange,
    gradient_memory_bytes,
    step_with_gradients_s,
)
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.servers import predict_psp, predict_two_stage_asgd
from lightning_hier.planning.synchronisation import synchronisation_memory_bytes, synchronise
from lightning_hier.planning.workload import Workload

STRATEGIES = (
    *("ddp", "gtc", "model_averaging", "bmuf", "bmuf_adam", "diloco", "bmuf_gtc", "hierarchical"),
    *("bmuf_adam_fsdp", "diloco_fsdp", "two_stage_asgd", "psp"),
)
_BLOCK_ARGUMENTS = ("block_size", "across_dtype", "across_density", "fragments", "overlap")
# Values of settings that have no effect. A density of 1 of GTC is shown, and is not exact.
_NO_EFFECT = {"group_size": 1, "across_density": 1.0, "fragments": 1, "moments_every": 1}


def predict(
    strategy: str, workload: Workload, network: Network, settings: Settings | None = None
) -> Prediction:
    """Predict the cost of one strategy.

    Args:
        strategy: name of the strategy, or ``"hierarchical"`` for a `HierarchicalStrategy` with the
            groups, gradients and blocks of the settings.
        workload: training of one rank.
        network: hosts and links.
        settings: arguments of the strategy. None: the defaults of :class:`Settings`.

    Raises:
        ValueError: an unknown strategy, or groups that do not fit the hosts.

    """
    settings = settings or Settings()
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if strategy == "two_stage_asgd":
        return predict_two_stage_asgd(workload, network, settings)
    if strategy == "psp":
        return predict_psp(workload, network)
    return _predict_tiers(strategy, workload, network, settings)


def predict_all(workload: Workload, network: Network, settings: Settings) -> list[Prediction]:
    """Predict the cost of every strategy that fits the workload's optimizer.

    Raises:
        ValueError: the groups do not fit the hosts.

    """
    adam = workload.optimizer == "adam"
    names = ["ddp", "gtc", "model_averaging", "bmuf_adam" if adam else "bmuf", "diloco"]
    if settings.group_size > 1:
        names.append("hierarchical" if adam else "bmuf_gtc")
    if network.devices > 1:
        names += ["bmuf_adam_fsdp"] * adam + ["diloco_fsdp"]
    names += ["two_stage_asgd", "psp"]
    return [predict(name, workload, network, settings) for name in names]


def _predict_tiers(
    strategy: str, workload: Workload, network: Network, settings: Settings
) -> Prediction:
    """Gradients inside groups at every step, models across groups at the end of each block."""
    settings = _own(strategy, network, settings)
    group = Layout(network=network, group_size=settings.group_size).group
    if settings.divided:
        gradients = divided_exchange(workload, group, network)
        step_s = divided_step_s(workload, network, gradients)
    else:
        exchanged = exchange(workload, group, network, settings.density)
        gradients = exchanged.overlapped  # what follows the last bucket sends nothing
        step_s = step_with_gradients_s(workload, network, exchanged)
    block, tau = synchronise(workload, network, settings), settings.block_size
    return Prediction(
        strategy=strategy,
        settings=_shown(strategy, settings),
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=block.mean_step_s(step_s, settings),
        host_bytes=gradients.nic_bytes + block.host_bytes / tau,
        memory_bytes=_training_memory_bytes(workload, group, settings)
        + synchronisation_memory_bytes(workload, network, settings),
        peak_bytes=block.peak_bytes,
        pause_s=block.pause_s + block.outlasting_s(step_s, settings),
    )


def _training_memory_bytes(workload: Workload, group: RankGroup, settings: Settings) -> float:
    """Model, gradients, and state of the optimizer, with what their exchange adds."""
    divided = 2 * workload.gradient_bytes + workload.state_bytes
    buffers = workload.model_bytes - workload.gradient_bytes
    if settings.divided:
        return divided / group.size + buffers
    return divided + buffers + gradient_memory_bytes(workload, group, settings.density)


def _own(strategy: str, network: Network, settings: Settings) -> Settings:
    """The settings with the groups, gradients and blocks of the strategy."""
    density = settings.density or Settings.density
    # The presets divide a module among the devices of a host, unless groups are set.
    size = settings.group_size if settings.group_size > 1 else network.devices
    fsdp = {"group_size": size, "density": None, "sharded": True, "divided": True}
    # What the presets do not leave to the user.
    preset: dict[str, dict[str, Any]] = {
        "ddp": {"group_size": network.ranks, "density": None},
        "gtc": {"group_size": network.ranks, "density": density},
        "model_averaging": {"group_size": 1, "block_sync": "model_averaging"},
        "bmuf": {"group_size": 1, "block_sync": "bmuf"},
        "bmuf_adam": {"group_size": 1, "block_sync": "bmuf_adam"},
        "diloco": {"density": None, "block_sync": "diloco"},
        "bmuf_gtc": {"density": density, "block_sync": "bmuf"},
        "hierarchical": {},
        "bmuf_adam_fsdp": {"block_sync": "bmuf_adam", **fsdp},
        "diloco_fsdp": {"block_sync": "diloco", **fsdp},
    }
    return replace(settings, **preset[strategy])


def _shown(strategy: str, settings: Settings) -> dict[str, Any]:
    """The settings that have an effect."""
    names = ["density"] * (settings.group_size > 1)
    if strategy not in ("ddp", "gtc"):
        names = ["group_size", *names, *_BLOCK_ARGUMENTS, *["moments_every"] * settings.moments]
    values = {name: getattr(settings, name) for name in names}
    return {
        name: value
        for name, value in values.items()
        if value not in (None, False, "same") and _NO_EFFECT.get(name) != value
    }
