"""Predictions for every strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning_hier.planning.collectives import Layout
from lightning_hier.planning.gradients import BITMAP_DENSITY, WORD_BYTES, step_with_gradients
from lightning_hier.planning.inputs import Network, Workload
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.servers import predict_servers
from lightning_hier.planning.synchronisation import synchronise


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
    if strategy in ("two_stage_asgd", "psp"):
        return predict_servers(strategy, workload, network, settings)
    presets = _presets(network, settings)
    if strategy not in presets:
        names = ", ".join([*presets, "two_stage_asgd", "psp"])
        raise ValueError(f"strategy must be one of {names}, got {strategy!r}")
    return _predict_tiers(strategy, workload, network, replace(settings, **presets[strategy]))


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
    step_s, gradient_bytes = step_with_gradients(workload, network, settings)
    block = synchronise(workload, network, settings)
    return Prediction(
        strategy=strategy,
        settings=_shown(strategy, settings),
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=block.mean_step_s(step_s, settings),
        host_bytes=gradient_bytes + block.host_bytes / settings.block_size,
        memory_bytes=_training_memory_bytes(workload, settings)
        + synchronisation_memory_bytes(workload, network, settings),
        peak_bytes=block.peak_bytes,
        pause_s=block.pause_s + block.outlasting_s(step_s, settings),
    )


def _training_memory_bytes(workload: Workload, settings: Settings) -> float:
    """Memory of the rank that needs most: model, gradients, optimizer, and their exchange.

    DDP adds its buckets, and GTC also the residual and the payload of all ranks. For optimizers
    with a state, GTC of updates adds x and the updates of a step.
    """
    model, size = workload.gradient_bytes, settings.group_size
    held: float = 2 * model + workload.state_bytes
    if settings.across == "divided":
        held /= size
    elif size > 1 and settings.density is None:
        held += model
    elif size > 1 and settings.density is not None:
        sent = WORD_BYTES * min(settings.density, BITMAP_DENSITY) * workload.parameters
        of_updates = workload.state_bytes > 0
        held += (2 + 2 * of_updates) * model + size * sent
    return held + workload.model_bytes - model  # buffers are not divided


def synchronisation_memory_bytes(workload: Workload, network: Network, settings: Settings) -> float:
    """Transfer buffer, global model, state of the outer step, and what the settings add.

    The table is in docs/architecture.md, "The life of one step".
    """
    layout = Layout(network, settings)
    if layout.models == 1:
        return 0.0
    # W; Delta or the momentum of DiLoCo; block-start weights and update in flight; both moments at
    # the start of a block and, with a delay, when they were sent and in flight.
    late = bool(settings.overlap)
    vectors = 1.0 + (settings.block_sync != "model_averaging") + 2.0 * late
    vectors += 2.0 * settings.moments * (1.0 + 2.0 * late)
    # Error feedback, in float32 or wider, of own values, and of the sums that a rank computes.
    sparse, dense = settings.across_density < 1.0, settings.across_dtype != "same"
    errors = 1.0 if sparse else dense * (1 + 1 / layout.between_hosts.size)
    vectors += errors * max(4 / workload.element_bytes, 1.0)
    buffer = workload.model_bytes + 2 * settings.moments * workload.gradient_bytes
    share = 1.0 if settings.across == "leader" else 1 / settings.group_size
    # The buffer of other modules holds all tensors, of which shards are handed out in the group.
    buffer_share = share if settings.across == "divided" else 1.0
    return buffer_share * buffer + share * vectors * workload.gradient_bytes


def _presets(network: Network, settings: Settings) -> dict[str, dict[str, Any]]:
    """What each strategy does not leave to the user."""
    density = settings.density or Settings.density
    # The presets divide a module among the devices of a host, unless groups are set.
    size = settings.group_size if settings.group_size > 1 else network.devices
    fsdp = {"group_size": size, "density": None, "across": "divided"}
    return {
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


def _shown(strategy: str, settings: Settings) -> dict[str, Any]:
    """The settings that have an effect."""
    exact = settings.group_size == 1 or settings.density is None
    density = {} if exact else {"density": settings.density}
    if strategy in ("ddp", "gtc"):
        return density
    group = {"group_size": settings.group_size} if settings.group_size > 1 else {}
    return {**group, **density, **settings.block_arguments}
