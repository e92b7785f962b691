"""Recommendation of a strategy and its settings, by rules that state their reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightning_hier.planning.gradients import exchange, step_with_gradients_s
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.servers import cluster_of
from lightning_hier.planning.strategies import predict
from lightning_hier.planning.synchronisation import sparse_break_even, synchronise
from lightning_hier.planning.workload import Workload

# Fraction of the speed that DDP must keep, and fractions of a step that gradients in a group,
# groups, and synchronisations (with overlap) may cost.
_FAST_ENOUGH, _FREE, _SHARE, _OVERLAPPED_SHARE = 0.9, 0.05, 0.10, 0.03
# The papers use 8 to 400 steps. Shorter blocks do not improve accuracy, longer ones reduce it. From
# 200 on, they reduce it more than a delay of one block does (two_tiered_bmuf_gtc, Table 2).
_SHORTEST, _LONG, _LONGEST = 10, 200, 400


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A recommended strategy.

    Attributes:
        strategy: class of the strategy, or ``"ddp"``.
        arguments: arguments of the class; components are ``{"class_path": ..., "init_args": ...}``.
        settings: settings of all strategies, also if DDP is recommended.
        prediction: cost of the recommended strategy.
        reasons: one sentence for each rule.

    """

    strategy: str
    arguments: Mapping[str, Any]
    settings: Settings
    prediction: Prediction
    reasons: tuple[str, ...]


def recommend(
    workload: Workload, network: Network, fixed: Mapping[str, Any] | None = None
) -> Recommendation:
    """Apply the rules of docs/planning.md, "How a strategy is recommended".

    Args:
        workload: training of one rank.
        network: hosts and links.
        fixed: fields of :class:`Settings` that the user has set.

    Raises:
        ValueError: a value is out of range, or groups do not fit the hosts.

    """
    fixed = fixed or {}
    settings = Settings(**fixed, moments=workload.optimizer == "adam")
    Layout(network=network, group_size=settings.group_size)
    rules = {"group_size": _group_size, "density": _density, "push_period": _push_period}
    if "block_size" not in fixed:
        rules["across_dtype" if settings.moments else "overlap"] = _remedy
        rules["block_size"] = _block_size
    reasons = []
    for name, rule in rules.items():
        if name not in fixed:
            value, reason = rule(workload, network, settings)
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
            reasons += [reason] if reason else []
    if settings.across_density < 1.0:
        reasons.append(_sparse_reason(workload, network, settings))
    strategy, arguments = _strategy_class(settings)
    prediction = predict("ddp", workload, network)
    kept = prediction.efficiency
    if kept >= _FAST_ENOUGH:
        strategy, arguments = "ddp", {}
        reasons = [f"DDP keeps {kept:.0%} of the speed, so no other strategy is needed."]
    else:
        prediction = predict("hierarchical", workload, network, settings)
        reasons.insert(0, f"DDP would keep {kept:.0%} of the speed.")
    return Recommendation(
        strategy=strategy,
        arguments=arguments,
        settings=settings,
        prediction=prediction,
        reasons=tuple(reasons),
    )


def _group_size(workload: Workload, network: Network, settings: Settings) -> tuple[int, str]:
    """All devices of a host if their gradients add at most 10% to a step, otherwise 1."""
    devices = network.devices
    if devices == 1 or network.hosts == 1:
        return 1, "Every rank trains its own model."
    costs = (
        _step_s(workload, network, replace(settings, group_size=devices, density=density))
        / workload.step_s
        - 1
        for density in (None, settings.density)
    )
    cost = min(costs)
    if cost > _SHARE:
        return 1, f"Gradients inside a host would add {cost:.0%}: every rank trains its own model."
    return devices, (
        f"The {devices} devices of a host train one model, which adds {cost:.1%} to a step and "
        f"leaves {network.hosts} models to average instead of {network.ranks}."
    )


def _density(workload: Workload, network: Network, settings: Settings) -> tuple[float | None, str]:
    """Exact gradients if they add at most 5% to a step, or less than compressed ones."""
    if settings.group_size == 1:
        return None, ""
    exact = _step_s(workload, network, replace(settings, density=None)) / workload.step_s - 1
    compressed = _step_s(workload, network, settings) / workload.step_s - 1
    if exact <= max(_FREE, compressed):
        return None, f"Exact gradients add {exact:.1%} to a step, so compression is not needed."
    return settings.density, (
        f"Exact gradients would add {exact:.0%} to a step, a density of {settings.density:g} adds "
        f"{compressed:.1%}."
    )


def _remedy(workload: Workload, network: Network, settings: Settings) -> tuple[Any, str]:
    """Overlap if blocks would be longer than 200 steps without it.

    With Adam, models and moments are exchanged in bfloat16 instead, because the effect of late
    moments on learning has not been measured.
    """
    size, _ = _block_size(workload, network, settings)
    if size <= _LONG:
        return (settings.across_dtype if settings.moments else False), ""
    how = "in bfloat16" if settings.moments else "during the next block"
    reason = f"Blocks would take {size} steps: models are exchanged {how}."
    return ("bfloat16" if settings.moments else True), reason


def _block_size(workload: Workload, network: Network, settings: Settings) -> tuple[int, str]:
    """The shortest block whose synchronisation costs at most 10% of its steps, 3% with overlap."""
    share = _OVERLAPPED_SHARE if settings.overlap else _SHARE
    found, step_s = synchronise(workload, network, settings), _step_s(workload, network, settings)
    # With overlap, the exchange must also end before the next block ends.
    wanted = math.ceil(max(found.blocking_s / (share * step_s), found.in_flight_s / step_s))
    size = min(max(wanted, _SHORTEST), _LONGEST)
    cost = found.mean_step_s(step_s, size) / step_s - 1
    reason = (
        f"A synchronisation costs {found.blocking_s:.3g} s, {found.blocking_s / step_s:.1f} steps: "
        f"{cost:.1%} in blocks of {size} steps"
    )
    return size, reason + (f"; {share:.0%} would take {wanted}." if wanted > size else ".")


def _sparse_reason(workload: Workload, network: Network, settings: Settings) -> str:
    """Bytes of a sparse exchange, which grow with the number of hosts, and of a dense one."""
    sparse, dense = (
        synchronise(workload, network, own).host_bytes / 1e6
        for own in (settings, replace(settings, across_density=1.0))
    )
    hosts = sparse_break_even(workload.element_bytes, settings)
    return (
        f"A host sends {sparse:.3g} MB in a synchronisation with across_density="
        f"{settings.across_density:g}, and {dense:.3g} MB with 1. Sparse updates send fewer bytes "
        f"on up to {math.floor(hosts)} hosts."
    )


def _push_period(workload: Workload, network: Network, settings: Settings) -> tuple[int, str]:
    """The smallest N of two-stage ASGD with T_calc >= T_trans (eq. 6 and 7)."""
    return (cluster_of(workload, network).best_push_period() if network.hosts > 1 else 1), ""


def _step_s(workload: Workload, network: Network, settings: Settings) -> float:
    """Seconds of a step between two synchronisations."""
    group = Layout(network=network, group_size=settings.group_size).group
    gradients = exchange(workload, group, network, settings.density)
    return step_with_gradients_s(workload, network, gradients)


def _strategy_class(settings: Settings) -> tuple[str, dict[str, Any]]:
    """The class of a strategy with these settings, and its arguments."""
    block: dict[str, Any] = {"block_size": settings.block_size}
    if settings.across_dtype != Settings.across_dtype:
        block["across_dtype"] = settings.across_dtype
    if settings.overlap:
        block["overlap"] = True
    sparse = settings.across_density < 1.0  # not an argument of the presets
    if sparse:
        block["across_density"] = settings.across_density
    if settings.group_size == 1 and not sparse:
        return ("BMUFAdamStrategy" if settings.moments else "BMUFStrategy"), block
    group: dict[str, Any] = {"group_size": settings.group_size}
    compresses = settings.density is not None and settings.group_size > 1
    density = {"density": settings.density} if compresses else {}
    if density and not settings.moments and not sparse:
        return "BMUFGTCStrategy", group | density | block
    group["gradient_sync"] = _component("GTC", density) if density else _component("AllReduce", {})
    group["block_sync"] = _component("BMUFAdam" if settings.moments else "BMUF", block)
    return "HierarchicalStrategy", group


def _component(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"lightning_hier.{name}", "init_args": arguments}
