"""Recommendation of a strategy and its settings, by rules that state their reasons.

Block synchronisations are compared in an order of preference, each with its shortest block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_hier.algorithms.automatic import MOMENTS_EVERY
from lightning_hier.planning.collectives import Layout
from lightning_hier.planning.gradients import step_with_gradients
from lightning_hier.planning.inputs import Network, Workload
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.servers import best_push_period
from lightning_hier.planning.strategies import predict
from lightning_hier.planning.synchronisation import synchronise

# overlap=True stands for the fewest steps that hide the exchange of a fragment.
_LATE: dict[str, Any] = {"fragments": 4, "overlap": True}
_SPARSE: dict[str, Any] = {"across_dtype": "int4", "across_density": 0.02}

PREFERENCE: tuple[Mapping[str, Any], ...] = (
    {"block_sync": "bmuf"},
    {"block_sync": "bmuf", "across_dtype": "int8"},
    {"block_sync": "bmuf", "across_dtype": "int4"},
    {"block_sync": "bmuf", "across_dtype": "int4", **_LATE},
    {"block_sync": "diloco", **_SPARSE, **_LATE},
)
"""Settings by their effect on what the model learns, the smallest first."""

# docs/reports/low_communication.md: int4, and moments less often, cost less loss than a delay.
ADAM_PREFERENCE: tuple[Mapping[str, Any], ...] = (
    {"block_sync": "bmuf_adam", "moments_every": MOMENTS_EVERY},
    {"block_sync": "bmuf_adam", "across_dtype": "int4", "moments_every": 6},
    {"block_sync": "diloco", "across_dtype": "int4"},
    {"block_sync": "diloco", "across_dtype": "int4", **_LATE},
    {"block_sync": "diloco", **_SPARSE, **_LATE},
)
"""The same for Adam."""

ENOUGH = 0.03
"""Share of a step that synchronisations may add."""

LONG = 100
"""Steps of a block up to which a synchronisation is preferred to the next one."""

# The papers use 8 to 400 steps. Shorter blocks do not improve accuracy, longer ones reduce it.
_SHORTEST, _LONGEST = 10, 400
# Predictions may be so much too short, and a delay should suffice nevertheless.
_MARGIN = 1.2
# Step time, relative to the fastest, up to which the preference decides.
_AS_FAST = 1.05
# Fraction of the speed that DDP must keep, and fractions of a step that gradients in a group and
# groups may cost.
_FAST_ENOUGH, _FREE, _SHARE = 0.9, 0.05, 0.10
# Below this fraction, a warm-up of a tenth of the run would double its time.
_WARM_UP = 0.1
_CLASSES = {
    "model_averaging": "ModelAveraging",
    "bmuf": "BMUF",
    "bmuf_adam": "BMUFAdam",
    "diloco": "DiLoCo",
}
# Outer steps (docs/choosing.md, "AdamW over slow links"): momentum from the number of groups is too
# large for many of them, and sparse updates allow none.
_MANY_GROUPS, _MOST_MOMENTUM = 16, 0.9
_SPARSE_OUTER: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.0}
# Arguments of a block synchronisation that the presets do not have.
_COMPONENT = ("across_density", "moments_every")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A block synchronisation on a network.

    Attributes:
        settings: settings with the shortest delay and block.
        prediction: cost of training with it.
        cost: share of a step that the synchronisations add.
        is_enough: whether it is at most ``ENOUGH`` in blocks that are not too long.

    """

    settings: Settings
    prediction: Prediction
    cost: float
    is_enough: bool


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A recommended strategy.

    Attributes:
        strategy: class of the strategy, or ``"ddp"``.
        arguments: arguments of the class; components are ``{"class_path": ..., "init_args": ...}``.
        settings: settings of all strategies, also if DDP is recommended.
        prediction: cost of the recommended strategy.
        reasons: one sentence for each rule.
        candidates: all block synchronisations that were compared, in order of preference.

    """

    strategy: str
    arguments: Mapping[str, Any]
    settings: Settings
    prediction: Prediction
    reasons: tuple[str, ...]
    candidates: tuple[Candidate, ...]


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
    fixed = dict(fixed or {})
    if fixed.get("density") == 1:  # which GTC refuses: exact gradients are sent without it
        fixed["density"] = None
    settings, reasons = _gradients(workload, network, fixed)
    compared = _candidates(workload, network, settings, fixed)
    best = _choose(compared)
    prediction = predict("ddp", workload, network)
    kept = prediction.efficiency
    if kept >= _FAST_ENOUGH:
        strategy: str = "ddp"
        arguments: dict[str, Any] = {}
        reasons = [f"DDP keeps {kept:.0%} of the speed, so no other strategy is needed."]
    else:
        models = Layout(network, best.settings).models
        strategy, arguments = _strategy_class(best.settings, models)
        prediction = best.prediction
        reasons = [f"DDP would keep {kept:.1%} of the speed.", *reasons, *_block_reasons(best)]
        if kept < _WARM_UP:
            arguments["warmup_steps"] = 0
            reasons.append(
                f"warmup_steps is 0: a step of a warm-up would take {1 / kept:.0f} times as long."
            )
        if best.settings.block_sync == "diloco" and workload.optimizer == "adam":
            # docs/reports/low_communication.md
            reasons.append("Under DiLoCo, Adam learns more with a first beta of 0.5 than of 0.9.")
    return Recommendation(
        strategy=strategy,
        arguments=arguments,
        settings=best.settings,
        prediction=prediction,
        reasons=tuple(reasons),
        candidates=tuple(compared),
    )


def _gradients(
    workload: Workload, network: Network, fixed: Mapping[str, Any]
) -> tuple[Settings, list[str]]:
    """Groups, density and push period that are not fixed, in a block that is long enough."""
    least = max(int(fixed.get(name, 0)) for name in ("fragments", "overlap"))
    settings = Settings(**{"block_size": max(Settings.block_size, least), **fixed})
    reasons = []
    if "group_size" not in fixed:
        size, reason = _group_size(workload, network, settings)
        settings, reasons = replace(settings, group_size=size), [reason]
    if "density" not in fixed and settings.group_size == 1:
        settings = replace(settings, density=None)
    elif "density" not in fixed:
        density, reason = _density(workload, network, settings)
        settings, reasons = replace(settings, density=density), [*reasons, reason]
    if "push_period" not in fixed:
        settings = replace(settings, push_period=best_push_period(workload, network))
    return settings, reasons


def _group_size(workload: Workload, network: Network, settings: Settings) -> tuple[int, str]:
    """All devices of a host if their gradients add at most 10% to a step, otherwise 1."""
    devices = network.devices
    if devices == 1 or network.hosts == 1:
        return 1, "Every rank trains its own model."
    host = replace(settings, group_size=devices)
    cost = min(_added(workload, network, host, density) for density in (None, settings.density))
    if cost > _SHARE:
        return 1, f"Gradients inside a host would add {cost:.0%}: every rank trains its own model."
    return devices, (
        f"The {devices} devices of a host train one model, which adds {cost:.1%} to a step and "
        f"leaves {network.hosts} models to average instead of {network.ranks}."
    )


def _density(workload: Workload, network: Network, settings: Settings) -> tuple[float | None, str]:
    """Exact gradients if they add at most 5% to a step, or less than compressed ones."""
    exact = _added(workload, network, settings, None)
    compressed = _added(workload, network, settings, settings.density)
    if exact <= max(_FREE, compressed):
        return None, f"Exact gradients add {exact:.1%} to a step, so compression is not needed."
    return settings.density, (
        f"Exact gradients would add {exact:.0%} to a step, a density of {settings.density:g} adds "
        f"{compressed:.1%}."
    )


def _added(
    workload: Workload, network: Network, settings: Settings, density: float | None
) -> float:
    """Share of a step that gradients of this density add."""
    step_s, _ = step_with_gradients(workload, network, replace(settings, density=density))
    return step_s / workload.step_s - 1


def _candidates(
    workload: Workload, network: Network, settings: Settings, fixed: Mapping[str, Any]
) -> list[Candidate]:
    """All candidates in order of preference.

    Args:
        workload: training of one rank.
        network: hosts and links.
        settings: groups and gradients.
        fixed: fields of :class:`Settings` that the user has set.

    Raises:
        ValueError: the fixed fields do not suit each other or the optimizer.

    """
    adam = workload.optimizer == "adam"
    moments = [name for name in fixed if name == "moments_every" or fixed[name] == "bmuf_adam"]
    if moments and not adam:
        raise ValueError(
            f"{moments[0]}={fixed[moments[0]]} needs optimizer='adam', got {workload.optimizer!r}"
        )
    block_sync = fixed.get("block_sync", "bmuf_adam")
    if fixed.get("moments_every", 1) > 1 and block_sync != "bmuf_adam":
        raise ValueError(
            f"moments_every={fixed['moments_every']} needs block_sync='bmuf_adam', got "
            f"{block_sync!r}"
        )
    fitted: dict[Settings, Candidate] = {}
    for option in ADAM_PREFERENCE if adam else PREFERENCE:
        if moments and option["block_sync"] != "bmuf_adam":
            continue
        if not fixed.get("overlap", True) and "overlap" in option:
            option = {n: value for n, value in option.items() if n not in _LATE}
        chosen = {**option, **fixed}
        if chosen["block_sync"] != "bmuf_adam":  # a fixed one, which sends no moments
            chosen["moments_every"] = 1
        try:
            option_settings = replace(settings, **chosen)
        except ValueError:  # a fixed block has too few steps
            continue
        # Fixed fields make some options equal. The first one keeps its place.
        if option_settings not in fitted:
            fitted[option_settings] = _fitted(workload, network, option_settings, fixed)
    return list(fitted.values())


def _choose(compared: Sequence[Candidate]) -> Candidate:
    """The first one that is enough.

    If none is, the shortest of the blocks that cost ``ENOUGH``. If all cost more, the first one
    that is about as fast as the fastest.
    """
    enough = [candidate for candidate in compared if candidate.is_enough]
    if enough:
        return enough[0]
    long = [candidate for candidate in compared if candidate.cost <= ENOUGH]
    if long:
        return min(long, key=lambda candidate: candidate.settings.block_size)
    # All blocks have the longest size here. The preference decides about small differences of time.
    limit_s = _AS_FAST * min(candidate.prediction.step_s for candidate in compared)
    return next(candidate for candidate in compared if candidate.prediction.step_s <= limit_s)


def _fitted(
    workload: Workload, network: Network, settings: Settings, fixed: Mapping[str, Any]
) -> Candidate:
    """The shortest delay that hides an exchange, and the shortest block that is cheap enough."""
    step_s, _ = step_with_gradients(workload, network, settings)
    # Computed once, because it does not depend on the lengths of block and delay.
    block, parts = synchronise(workload, network, settings), settings.fragments
    longest = fixed.get("block_size", _LONGEST)
    shortest = fixed.get("block_size", max(_SHORTEST, parts, int(settings.overlap)))
    if settings.overlap and "overlap" not in fixed:
        delay = max(math.ceil(_MARGIN * block.in_flight_s / step_s), 1)
        delay = min(delay, max(longest // parts, 1))
        # A fragment arrives before the next one is sent.
        shortest = max(shortest, min(parts * delay, longest))
        settings = replace(settings, overlap=delay, block_size=shortest)
    # Not by division: with a delay, a longer block also hides more of each exchange.
    for size in range(shortest, max(shortest, longest) + 1):
        settings = replace(settings, block_size=size)
        cost = block.mean_step_s(step_s, settings) / step_s - 1
        if cost <= ENOUGH:
            break
    prediction = predict("hierarchical", workload, network, settings)
    return Candidate(
        settings=settings,
        prediction=replace(prediction, strategy=settings.block_sync),
        cost=cost,
        is_enough=cost <= ENOUGH and ("block_size" in fixed or size <= LONG),
    )


def _block_reasons(best: Candidate) -> list[str]:
    """Cost of the synchronisations, and whether it is low enough."""
    settings, pause_s = best.settings, best.prediction.pause_s
    reasons = [
        f"Synchronisations cost {best.cost:.1%} of a step in blocks of {settings.block_size} "
        f"steps, and stop training for {pause_s:.3g} s at a time."
    ]
    if best.cost > ENOUGH:
        reasons.append(f"No candidate costs at most {ENOUGH:.0%}. This one is among the fastest.")
    elif not best.is_enough:
        reasons.append(f"No candidate costs at most {ENOUGH:.0%} in blocks of {LONG} steps.")
    return reasons


def _strategy_class(settings: Settings, models: int) -> tuple[str, dict[str, Any]]:
    """The class of a strategy with these settings, and its arguments, for so many groups."""
    kind = _CLASSES[settings.block_sync]
    block = settings.block_arguments | _outer(settings, models)
    is_flat = not any(name in block for name in _COMPONENT)
    group: dict[str, Any] = {"group_size": settings.group_size}
    compresses = settings.density is not None and settings.group_size > 1
    density = {"density": settings.density} if compresses else {}
    if is_flat and kind == "DiLoCo" and not density:
        return "DiLoCoStrategy", group | block
    if is_flat and settings.group_size == 1:
        return f"{kind}Strategy", block
    if is_flat and kind == "BMUF" and density:
        return "BMUFGTCStrategy", group | density | block
    group["gradient_sync"] = _component("GTC", density) if density else _component("AllReduce", {})
    group["block_sync"] = _component(kind, block)
    return "HierarchicalStrategy", group


def _outer(settings: Settings, models: int) -> dict[str, Any]:
    """Arguments of the outer step that differ from the defaults."""
    if settings.block_sync == "bmuf_adam" and models >= _MANY_GROUPS:
        return {"block_momentum": _MOST_MOMENTUM}
    if settings.block_sync != "diloco":
        return {}
    if settings.across_density < 1.0:
        return _SPARSE_OUTER
    return {"outer_momentum": _MOST_MOMENTUM if models >= _MANY_GROUPS else "auto"}


def _component(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"lightning_hier.{name}", "init_args": arguments}
