"""Presets of the Trainer: named strategies with flat arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from torch.distributed.constants import default_pg_timeout

from lightning_hier.algorithms.automatic import Auto
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam, LocalBeta1, Moments
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.exchange import AcrossDtype
from lightning_hier.comm.blocks.outer_step import OuterOptimizer
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.strategies import preset_settings as settings
from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.model_parallel import HierarchicalModelParallelStrategy


class GTCStrategy(settings.GTCPreset, HierarchicalStrategy):
    """Gradient threshold compression in one group of all ranks (two_tiered_bmuf_gtc 2.1).

    Arguments are those of :class:`~lightning_hier.GTC` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class ModelAveragingStrategy(settings.ModelAveragingPreset, HierarchicalStrategy):
    """Model averaging, every rank a worker (bmuf with eta = 0 and zeta = 1).

    Arguments are those of :class:`~lightning_hier.ModelAveraging` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFStrategy(settings.BMUFPreset, HierarchicalStrategy):
    """Blockwise model-update filtering, every rank a worker (bmuf 2.1).

    Arguments are those of :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFAdamStrategy(settings.BMUFAdamPreset, HierarchicalStrategy):
    """BMUF for Adam, AdamW, NAdam and RAdam, every rank a worker (bmuf_adam 2.2).

    Arguments are those of :class:`~lightning_hier.BMUFAdam` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFGTCStrategy(settings.BMUFGTCPreset, HierarchicalStrategy):
    """GTC inside groups, blockwise model-update filtering across them (two_tiered_bmuf_gtc 2.3).

    Arguments are those of :class:`~lightning_hier.GTC`, :class:`~lightning_hier.BMUF` and
    :class:`~lightning_hier.HierarchicalStrategy`. N of block momentum is the number of
    groups.
    """


class DiLoCoStrategy(settings.DiLoCoPreset, HierarchicalStrategy):
    """An outer optimizer across groups, exact gradients inside them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalStrategy`.
    """


class BMUFAdamFSDPStrategy(HierarchicalModelParallelStrategy):
    """FSDP2 and tensor parallelism inside groups, BMUF for Adam across them (bmuf_adam 2.2).

    Arguments are those of :class:`~lightning_hier.BMUFAdam` and
    :class:`~lightning_hier.HierarchicalModelParallelStrategy`.
    """

    strategy_name = "bmuf_adam_fsdp"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        tensor_parallel_size: int = 1,
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
        ranks_per_device: int = 1,
        offload_outer_state: bool = False,
        save_distributed_checkpoint: bool = True,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            group_size=group_size,
            tensor_parallel_size=tensor_parallel_size,
            block_sync=settings.component(BMUFAdam, locals()),
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            offload_outer_state=offload_outer_state,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timeout,
        )


class DiLoCoFSDPStrategy(HierarchicalModelParallelStrategy):
    """FSDP2 and tensor parallelism inside groups, an outer optimizer across them (DiLoCo).

    Arguments are those of :class:`~lightning_hier.DiLoCo` and
    :class:`~lightning_hier.HierarchicalModelParallelStrategy`.
    """

    strategy_name = "diloco_fsdp"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        tensor_parallel_size: int = 1,
        block_size: int | Auto = "auto",
        outer_lr: float = 0.7,
        outer_momentum: float | Literal["auto"] = "auto",
        nesterov: bool = True,
        outer_optimizer: OuterOptimizer | None = None,
        across_dtype: AcrossDtype = "same",
        fragments: int = 1,
        overlap: bool | int = False,
        warmup_steps: int | Auto = "auto",
        ranks_per_device: int = 1,
        offload_outer_state: bool = False,
        save_distributed_checkpoint: bool = True,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            group_size=group_size,
            tensor_parallel_size=tensor_parallel_size,
            block_sync=settings.component(DiLoCo, locals()),
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            offload_outer_state=offload_outer_state,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timeout,
        )
