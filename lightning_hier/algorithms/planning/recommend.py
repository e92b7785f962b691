"""Which strategy, and how to set it: rules that say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightning_hier.algorithms.planning.blocks import predict_blocks
from lightning_hier.algorithms.planning.ddp import predict_ddp
from lightning_hier.algorithms.planning.gtc import GTCSettings
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.synchronisation import AcrossDtype, BlockSettings
from lightning_hier.algorithms.planning.tuning import (
    recommend_block_size,
    recommend_density,
    recommend_group_size,
    step_of_group_s,
)
from lightning_hier.algorithms.planning.workload import Workload

_FAST_ENOUGH = 0.9
# From here on a longer block is dearer than a mean that comes one block late.
_LONG_BLOCK = 200


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user has decided; None is left to the rules.

    Attributes:
        block_size: tau.
        group_size: P.
        density: of GTC inside groups.
        across_dtype: in what form models travel.
        overlap: whether they travel beside the next block.
        share: of a step that synchronisation may cost.

    """

    block_size: int | None = None
    group_size: int | None = None
    density: float | None = None
    across_dtype: AcrossDtype | None = None
    overlap: bool | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to train with.

    Attributes:
        strategy: class of the strategy, or "ddp" for Lightning's own.
        arguments: of the class; other classes as ``{"class_path": ..., "init_args": ...}``.
        settings: of the blocks; where DDP is recommended, what they would be.
        density: of GTC in groups; None: exact gradients.
        prediction: what it is predicted to cost.
        reasons: one sentence each, in the order of the rules.

    """

    strategy: str
    arguments: Mapping[str, Any]
    settings: BlockSettings
    density: float | None
    prediction: Prediction
    reasons: tuple[str, ...]


def recommend(
    workload: Workload, network: Network, *, wishes: Wishes | None = None
) -> Recommendation:
    """The rules, in order.

    1. DDP where it keeps nine tenths of the speed: nothing learns better.
    2. Otherwise blocks; groups of a host's devices if inside a host gradients travel fast enough.
    3. In groups exact gradients if those are as good as free, else GTC.
    4. The shortest block that costs a tenth; if that were longer than 200 steps, models that
       travel beside the next block (Adam's state can't: bfloat16 instead).

    Raises:
        ValueError: a wish outside its range, or groups that do not fit the hosts.

    """
    wishes = wishes or Wishes()
    plain = predict_ddp(workload, network)
    group_size, density, reasons = _groups(workload, network, wishes)
    settings, said = _blocks(workload, network, wishes, group_size, density)
    # What ranks lose beside each other whatever they send is no fault of DDP's.
    kept_share = workload.disturbed_step_s / plain.step_s
    arguments: dict[str, Any] = {}
    if network.ranks == 1 or kept_share >= _FAST_ENOUGH:
        kept = f"DDP keeps {kept_share:.0%} of the speed: no need for anything else."
        strategy, prediction, reasons = "ddp", plain, [kept]
    else:
        gtc = None if density is None else GTCSettings(density=density)
        strategy, arguments = _named(settings, gtc)
        prediction = predict_blocks(workload, network, settings, gtc, name=strategy)
        reasons = [f"DDP would keep {kept_share:.0%} of the speed.", *reasons, *said]
    return Recommendation(
        strategy=strategy,
        arguments=arguments,
        settings=settings,
        density=density,
        prediction=prediction,
        reasons=tuple(reasons),
    )


def _groups(
    workload: Workload, network: Network, wishes: Wishes
) -> tuple[int, float | None, list[str]]:
    """Ranks of a group and what they send each other, and why."""
    if wishes.group_size is not None:
        Placement(network=network, group_size=wishes.group_size)
        group_size, reasons = wishes.group_size, ["Groups are as large as asked for."]
    elif network.hosts == 1:
        return 1, None, ["One host: blocks need several models, so every rank trains its own."]
    else:
        group_size, why = recommend_group_size(workload, network)
        reasons = [why]
    if group_size == 1:
        return 1, None, reasons
    if wishes.density is not None:
        return group_size, wishes.density, [*reasons, "The density is as asked for."]
    density, why = recommend_density(workload, network, group_size)
    return group_size, density, [*reasons, why]


def _blocks(
    workload: Workload,
    network: Network,
    wishes: Wishes,
    group_size: int,
    density: float | None,
) -> tuple[BlockSettings, list[str]]:
    """How models are synchronised, and why."""
    adam = workload.optimizer == "adam"
    settings = BlockSettings(
        block_size=wishes.block_size or 50,
        group_size=group_size,
        across_dtype=wishes.across_dtype or "same",
        overlap=bool(wishes.overlap),
        carried="moments" if adam else "model",
    )
    step_s = step_of_group_s(workload, network, group_size, density)

    def length(own: BlockSettings) -> tuple[int, str]:
        return recommend_block_size(workload, network, own, step_s, share=wishes.share)

    if wishes.block_size is not None:
        BlockSettings(block_size=wishes.block_size)
        return settings, ["Blocks are as long as asked for."]
    size, why = length(settings)
    reasons = []
    free = wishes.across_dtype is None if adam else wishes.overlap is None
    if size > _LONG_BLOCK and free:
        said = "as bfloat16" if adam else "while the next block is trained"
        reasons.append(
            f"Blocks of {size} steps and more would be needed to pay for it: models travel {said}."
        )
        settings = (
            replace(settings, across_dtype="bfloat16") if adam else replace(settings, overlap=True)
        )
        size, why = length(settings)
    return replace(settings, block_size=size), [*reasons, why]


def _named(settings: BlockSettings, gtc: GTCSettings | None) -> tuple[str, dict[str, Any]]:
    """The strategy class for such settings, and its arguments."""
    block: dict[str, Any] = {"block_size": settings.block_size}
    if settings.across_dtype != "same":
        block["across_dtype"] = settings.across_dtype
    if settings.overlap:
        block["overlap"] = True
    adam = settings.carried == "moments"
    if settings.group_size == 1:
        return ("BMUFAdamStrategy" if adam else "BMUFStrategy"), block
    if gtc is not None and not adam:
        compressed = {"group_size": settings.group_size, "density": gtc.density}
        return "BMUFGTCStrategy", {**compressed, **block}
    inside = _class("AllReduce", {}) if gtc is None else _class("GTC", {"density": gtc.density})
    across = _class("BMUFAdam" if adam else "BMUF", block)
    return "HierarchicalStrategy", {
        "group_size": settings.group_size,
        "gradient_sync": inside,
        "block_sync": across,
    }


def _class(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "class_path": f"lightning_hier.{name}",
        **({"init_args": arguments} if arguments else {}),
    }
