"""Settings of the presets: flat arguments for the ``HierarchicalStrategy`` of either door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar

from lightning_hier.algorithms.automatic import Auto
from lightning_hier.algorithms.block_momentum import UpdateFrom
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.bmuf import BMUF, LocalLR, LocalMomentum, ModelAveraging
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam, LocalBeta1, Moments
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.exchange import AcrossDtype
from lightning_hier.comm.blocks.outer_step import OuterOptimizer
from lightning_hier.comm.blocks.shard_placement import Across
from lightning_hier.comm.gradients.gradient_sync import GTC, CompressedValues, GradientSync
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.strategies.arguments import check_preset

_Kind = TypeVar("_Kind", bound=BlockSync | GradientSync)

# Arguments and defaults are written out, because the command line and its help read signatures.
# tests/cli/test_training.py compares them with the files in examples/strategies.


class Preset:
    """Base class of presets, which a class combines with a ``HierarchicalStrategy``."""

    strategy_name: str

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)


def component(kind: type[_Kind], arguments: Mapping[str, Any]) -> _Kind:
    """A synchronisation with those ``arguments`` of a preset that are its own."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: arguments[name] for name in names if name in arguments})


class GTCPreset(Preset):
    """Gradient threshold compression in one group of all ranks (two_tiered_bmuf_gtc 2.1)."""

    strategy_name = "gtc"

    def __init__(
        self,
        *,
        threshold: float | Literal["auto"] = "auto",
        density: float | Auto = "auto",
        dense_below: int = 1024,
        of: CompressedValues = "auto",
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size="world",
            gradient_sync=component(GTC, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )


class ModelAveragingPreset(Preset):
    """Model averaging, every rank a worker (bmuf with eta = 0 and zeta = 1)."""

    strategy_name = "model_averaging"

    def __init__(
        self,
        *,
        block_size: int | Auto = "auto",
        local_momentum: LocalMomentum = "auto",
        local_lr: LocalLR = "auto",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size=1,
            block_sync=component(ModelAveraging, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )


class BMUFPreset(Preset):
    """Blockwise model-update filtering, every rank a worker (bmuf 2.1)."""

    strategy_name = "bmuf"

    def __init__(
        self,
        *,
        block_size: int | Auto = "auto",
        block_momentum: float | Literal["auto"] = "auto",
        block_lr: float = 1.0,
        nesterov: bool = True,
        local_momentum: LocalMomentum = "auto",
        local_lr: LocalLR = "auto",
        c: float = 1.0,
        update_from: UpdateFrom = "global",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size=1,
            block_sync=component(BMUF, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )


class BMUFAdamPreset(Preset):
    """BMUF for Adam, AdamW, NAdam and RAdam, every rank a worker (bmuf_adam 2.2)."""

    strategy_name = "bmuf_adam"

    def __init__(
        self,
        *,
        block_size: int | Auto = "auto",
        block_momentum: float | Literal["auto"] = "auto",
        nesterov: bool = True,
        moments: Moments = "corrected",
        local_beta1: LocalBeta1 = "auto",
        block_lr: float = 1.0,
        c: float = 1.0,
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size=1,
            block_sync=component(BMUFAdam, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )


class BMUFGTCPreset(Preset):
    """GTC inside groups, blockwise model-update filtering across them (two_tiered_bmuf_gtc 2.3)."""

    strategy_name = "bmuf_gtc"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        threshold: float | Literal["auto"] = "auto",
        density: float | Auto = "auto",
        dense_below: int = 1024,
        of: CompressedValues = "auto",
        block_size: int | Auto = "auto",
        block_momentum: float | Literal["auto"] = "auto",
        block_lr: float = 1.0,
        nesterov: bool = True,
        local_momentum: LocalMomentum = "auto",
        local_lr: LocalLR = "auto",
        c: float = 1.0,
        update_from: UpdateFrom = "global",
        across: Across = "auto",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size=group_size,
            gradient_sync=component(GTC, locals()),
            block_sync=component(BMUF, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )


class DiLoCoPreset(Preset):
    """An outer optimizer across groups, exact gradients inside them (DiLoCo)."""

    strategy_name = "diloco"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        block_size: int | Auto = "auto",
        outer_lr: float = 0.7,
        outer_momentum: float | Literal["auto"] = "auto",
        nesterov: bool = True,
        outer_optimizer: OuterOptimizer | None = None,
        across: Across = "auto",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        **ddp_kwargs: Any,
    ) -> None:
        check_preset(self, ddp_kwargs)
        super().__init__(
            group_size=group_size,
            block_sync=component(DiLoCo, locals()),
            warmup_steps=warmup_steps,
            **ddp_kwargs,
        )
