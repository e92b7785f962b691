"""The strategy that combines a gradient synchronisation with a block synchronisation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_whole_or_auto
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.shard_placement import make_placement
from lightning_hier.comm.broadcast import check_sendable
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_sync import GTC, AllReduce, GradientSync
from lightning_hier.comm.progress_record import naming_missing_of_ddp
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.loop.settings import Synchronisation, check_synchronisations, described
from lightning_hier.loop.wrapping import check_batch_norm, check_compressible
from lightning_hier.membership.torchft import (
    TorchFT,
    check_delay,
    check_membership,
    check_one_optimizer,
)
from lightning_hier.strategies import module_setup, optimizer_checks
from lightning_hier.strategies.checkpoints.run_checkpoints import RunCheckpoints
from lightning_hier.strategies.elastic import ElasticFit
from lightning_hier.strategies.synchronous import SynchronousStrategy


class HierarchicalStrategy(SynchronousStrategy, DDPStrategy):
    """Data-parallel training in two tiers: gradients inside groups, models across them.

    Args:
        group_size: ranks of a group: a number, ``"node"`` (the ranks of one host) or ``"world"``
            (one group of all ranks). It must divide the number of ranks.
        gradient_sync: gradient synchronisation inside a group at every step: ``AllReduce()``,
            ``GTC(...)`` or ``CommHook(hook, state)``. None is ``AllReduce()``.
        block_sync: synchronisation of the groups' models after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, ``BMUFAdam(...)``, ``DiLoCo(...)``, or None with
            a single group.
        warmup_steps: number of first steps in which the gradients of every optimizer are averaged
            exactly over the world. Blocks start after them. ``"auto"`` is a tenth of the steps of
            the run, at most 500. It is 50 if the length of the run is unknown, and 0 if a warm-up
            is not possible.
        ranks_per_device: ranks that share each device, each with its own model, optimizer, random
            state and part of the data. Lightning's launcher starts them; torchrun must start
            ``devices`` times as many processes on each host. Above 1, they communicate by gloo.
        membership: ``TorchFT(...)`` if groups come and go. Every group is then a job of its own,
            and all its ranks are one group, whatever ``group_size`` is. See
            :class:`~lightning_hier.TorchFT`.
        timeout: time limit of every collective, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy`` and torch's
            ``DistributedDataParallel``, such as ``find_unused_parameters``.

    Raises:
        ValueError: a value is outside its range, or values cannot be combined.

    """

    strategy_name = "hierarchical"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        gradient_sync: GradientSync | None = None,
        block_sync: BlockSync | None = None,
        warmup_steps: int | Auto = "auto",
        ranks_per_device: int = 1,
        membership: TorchFT | None = None,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        check_whole_or_auto("warmup_steps", warmup_steps, least=0)
        super().__init__(
            group_size="world" if membership else group_size,
            warmup_steps=0 if warmup_steps == "auto" else warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            **ddp_kwargs,
        )
        self._checkpoints = RunCheckpoints(self)
        check_synchronisations(gradient_sync, block_sync, self.of_ddp)
        if membership is not None and warmup_steps == "auto":
            warmup_steps = 0  # jobs exchange no gradients
        self._asked = Synchronisation(
            warmup_steps, gradient_sync or AllReduce(), block_sync, membership is not None
        )
        self.gradient_sync: GradientSync = self._asked.gradient_sync
        self.block_sync = block_sync
        self.membership = membership
        if membership is not None:
            check_membership(
                membership, block_sync, warmup_steps=self.warmup_steps, limit=self.limit
            )

    @override
    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "gradient_sync": self.gradient_sync,
            "membership": self.membership,
        }

    @override
    def _check_groups(self, layout: RankLayout) -> None:
        if self.membership is None:
            super()._check_groups(layout)
        elif self.block_sync is not None:
            self.block_sync.check_models(self.membership.groups)

    @override
    def _check_trainer(self, trainer: pl.Trainer) -> None:
        if self._layer_sync is None:  # otherwise it converts the layers for this group
            check_batch_norm(self._module, self.communicators.group.ranks)
        if isinstance(self.gradient_sync, GTC):
            check_compressible(self._module)

    @override
    def _check_optimizers(self) -> None:
        super()._check_optimizers()
        if self.membership is not None:
            check_one_optimizer(self.block_sync, len(self.optimizers))

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self._layer_sync is not None:  # Lightning's would compute statistics over the world
            self._layer_sync = module_setup.GroupSyncBatchNorm(self.communicators.group.group)
        if self.membership is not None and self._module.trainer.state.fn == TrainerFn.FITTING:
            required = described({"warmup_steps": self.warmup_steps} | self._settings())
            for name in ("lighthouse", "group"):  # the others must be equal in all groups
                required.pop(name)
            if self.block_sync is not None:  # "auto" depends on the hosts of each job
                across, group = self.block_sync.across, self.communicators.group
                required["across"] = make_placement(across, group, nics=self._fewest_nics()).across
            self._elastic = ElasticFit(self, self.membership, required)

    @override
    def _begin_fit(self, trainer: pl.Trainer) -> None:
        sync = None if self.layout.sizes[0] == 1 else self.gradient_sync  # one rank sends nothing
        self._open_session(sync, self._wrap)

    def _wrap(self, ranks: Channel | None) -> Module:
        """Wrap the module by DDP over ``ranks``, if given. A collective of them."""
        self.model = module = self._module  # the old wrapper is not kept
        if ranks is None:
            return module
        check_sendable(module, dist.get_backend())
        wrapped = DistributedDataParallel(
            module,
            device_ids=self.determine_ddp_device_ids(),
            process_group=ranks.group,
            **self.of_ddp,
        )
        self.model = wrapped
        return wrapped

    @override
    def on_train_start(self) -> None:
        if self._elastic is not None:
            self._elastic.begin_training(self._fit_session)
        super().on_train_start()

    @override
    def configure_ddp(self) -> None:
        self._prepare_fit()
        self.gradient_sync = self._used.gradient_sync
        if self.membership and self.block_sync:
            check_delay(self.block_sync)  # with the number that stands for "auto"
        if self._elastic is not None:
            self._elastic.exchange.share_initial_model(self._module)  # with the other jobs

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        in_job = super().distributed_sampler_kwargs
        if self.membership is None or (self.lightning_module and not self._module.trainer.training):
            return in_job  # each job evaluates all
        ranks = in_job["num_replicas"]  # every job has so many
        first = self.membership.group * ranks
        return {"num_replicas": self.membership.groups * ranks, "rank": first + in_job["rank"]}

    @override
    def teardown(self) -> None:
        if self._elastic is not None:
            self._elastic.close()
        self._elastic = None
        super().teardown()

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's step. A collective of its group if DDP broadcasts buffers."""
        with naming_missing_of_ddp(self.model):
            return super().training_step(*args, **kwargs)

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients, and average them. A collective of the group."""
        with naming_missing_of_ddp(self.model):
            return super().backward(*args, **kwargs)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validate the module itself. DDP's wrapper would exchange buffers at every batch."""
        with self.precision_plugin.val_step_context():
            return self._module.validation_step(*args, **kwargs)

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint and the state of all ranks. A collective of the world."""
        write = partial(super().save_checkpoint, filepath=filepath, storage_options=storage_options)
        self._save(checkpoint, filepath, write, storage_options)

    @override
    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._checkpoints.note(checkpoint_path, weights_only, checkpoint)
        return checkpoint

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Resume the saved run, and warn about lost state. A collective of the world."""
        optimizer_checks.check_saved(checkpoint, self.optimizers, self.root_device)
        if not self._checkpoints.resume(self._fit_session, checkpoint):
            super().load_optimizer_state_dict(checkpoint)  # a checkpoint of plain Lightning
