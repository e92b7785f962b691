"""Block synchronisations in the order in which they are preferred, each with its shortest block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_hier.algorithms.automatic import MOMENTS_EVERY
from lightning_hier.planning.gradients import step_with_gradients
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.strategies import predict
from lightning_hier.planning.synchronisation import synchronise
from lightning_hier.planning.workload import Workload

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


def candidates(
    workload: Workload, network: Network, settings: Settings, fixed: Mapping[str, Any]
) -> list[Candidate]:
    """All candidates in order of preference.

    Args:
        workload: training of one rank.
        network: hosts and links.
        settings: groups and gradients.
        fixed: fields of :class:`Settings` that the user has set.

    Raises:
        ValueError: the fixed fields do not suit the optimizer.

    """
    adam = workload.optimizer == "adam"
    moments = [name for name in fixed if name == "moments_every" or fixed[name] == "bmuf_adam"]
    if moments and not adam:
        raise ValueError(
            f"{moments[0]}={fixed[moments[0]]} needs optimizer='adam', got {workload.optimizer!r}"
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


def choose(compared: Sequence[Candidate]) -> Candidate:
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
