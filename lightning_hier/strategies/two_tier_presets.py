"""Presets of two tiers, with flat arguments: one synchronisation in groups, another across them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from torch.distributed.constants import default_pg_timeout

from lightning_hier.algorithms.automatic import Auto
from lightning_hier.algorithms.block_momentum import UpdateFrom
from lightning_hier.comm.blocks.bmuf import BMUF
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.exchange import AcrossDtype
from lightning_hier.comm.blocks.model_averaging import LocalMomentum
from lightning_hier.comm.blocks.outer_optimizer import OuterOptimizer
from lightning_hier.comm.blocks.shard_placement import Across
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.strategies.hierarchical import HierarchicalStrategy


class BMUFGTCStrategy(HierarchicalStrategy):
    """GTC inside groups, blockwise model-update filtering across them (two_tiered_bmuf_gtc 2.3).

    Arguments are those of :class:`~lightning_hier.GTC`, :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`. N of block momentum is the number of groups.
    """

    strategy_name = "bmuf_gtc"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        threshold: float | Literal["auto"] = "auto",
        density: float | Auto = "auto",
        dense_below: int = 1024,
        block_size: int | Auto = "auto",
        block_momentum: float | Literal["auto"] = "auto",
        block_lr: float = 1.0,
        nesterov: bool = True,
        local_momentum: LocalMomentum = "reset",
        c: float = 1.0,
        update_from: UpdateFrom = "global",
        across: Across = "auto",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        ranks_per_device: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            group_size=group_size,
            gradient_sync=GTC(threshold=threshold, density=density, dense_below=dense_below),
            block_sync=BMUF(
                block_size=block_size,
                block_momentum=block_momentum,
                block_lr=block_lr,
                nesterov=nesterov,
                local_momentum=local_momentum,
                c=c,
                update_from=update_from,
                across=across,
                across_dtype=across_dtype,
                fragments=fragments,
                overlap=overlap,
            ),
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            **ddp_kwargs,
        )


class DiLoCoStrategy(HierarchicalStrategy):
    """An outer optimizer across groups, exact gradients inside them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """

    strategy_name = "diloco"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        block_size: int | Auto = 100,
        outer_lr: float = 0.7,
        outer_momentum: float | Literal["auto"] = 0.9,
        nesterov: bool = True,
        outer_optimizer: OuterOptimizer | None = None,
        across: Across = "auto",
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        ranks_per_device: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            group_size=group_size,
            block_sync=DiLoCo(
                block_size=block_size,
                outer_lr=outer_lr,
                outer_momentum=outer_momentum,
                nesterov=nesterov,
                outer_optimizer=outer_optimizer,
                across=across,
                across_dtype=across_dtype,
                fragments=fragments,
                overlap=overlap,
            ),
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            **ddp_kwargs,
        )
