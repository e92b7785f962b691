"""Presets for modules that are divided inside groups, with flat arguments."""

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
from lightning_hier.strategies.model_parallel import HierarchicalModelParallelStrategy


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
            block_sync=BMUFAdam(
                block_size=block_size,
                block_momentum=block_momentum,
                nesterov=nesterov,
                moments=moments,
                local_beta1=local_beta1,
                block_lr=block_lr,
                c=c,
                across_dtype=across_dtype,
                fragments=fragments,
                overlap=overlap,
            ),
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
            block_sync=DiLoCo(
                block_size=block_size,
                outer_lr=outer_lr,
                outer_momentum=outer_momentum,
                nesterov=nesterov,
                outer_optimizer=outer_optimizer,
                across_dtype=across_dtype,
                fragments=fragments,
                overlap=overlap,
            ),
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            offload_outer_state=offload_outer_state,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timeout,
        )
