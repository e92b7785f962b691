"""The strategy that divides a module inside groups, and synchronises blocks across them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from lightning_hier.algorithms.arguments import (
    NamedArguments,
    check_flag,
    check_whole,
    check_whole_or_auto,
)
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.callbacks.packages import both
from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import AllReduce
from lightning_hier.comm.process_groups import SHARED
from lightning_hier.comm.sharded_tensors import reshard_
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.loop.settings import (
    MOMENTUM,
    Synchronisation,
    automatic_values,
    check_synchronisations,
)
from lightning_hier.loop.wrapping import check_batch_norm
from lightning_hier.strategies import (
    arguments,
    data_checks,
    launch,
    module_setup,
    optimizer_checks,
)
from lightning_hier.strategies.checkpoints.run_checkpoints import RunCheckpoints
from lightning_hier.strategies.checkpoints.sharded_folder import (
    check_replaceable,
    local_path,
    on_every_host,
    save_folder,
    saved_optimizers,
)
from lightning_hier.strategies.synchronous import SynchronousStrategy


class HierarchicalModelParallelStrategy(SynchronousStrategy, ModelParallelStrategy, NamedArguments):
    """FSDP2 and tensor parallelism inside groups of ranks, blocks across them.

    Args:
        group_size: ranks of a group: a number, ``"node"`` (the devices of one host) or ``"world"``.
        tensor_parallel_size: consecutive ranks of a group that share a batch. It divides
            ``group_size``.
        block_sync: synchronisation of the groups' models after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, ``BMUFAdam(...)``, ``DiLoCo(...)``, or None with
            a single group.
        warmup_steps: number of first steps in which gradients are averaged over all ranks.
            ``"auto"`` is a tenth of the steps of the run, at most 500. It is 50 if the length
            of the run is unknown, and 0 with a single group.
        ranks_per_device: ranks that share each device, each with its own shards, optimizer, random
            state and part of the data. Lightning's launcher starts them; torchrun must start
            ``devices`` times as many processes on each host. Above 1, they communicate by gloo.
        offload_outer_state: whether W, the state of the outer step and the moments at the start of
            a block lie in the memory of the host, pinned if the model is on a GPU. Their
            chunks are copied to the device at a synchronisation. The results are the same.
        save_distributed_checkpoint: whether every rank saves its shards to a folder. Otherwise rank
            0 saves the whole model to a file.
        timeout: time limit of every collective, after which an error names the missing ranks.

    Raises:
        ValueError: a value is outside its range, or values cannot be combined.

    """

    strategy_name = "hierarchical_model_parallel"
    taken_elsewhere = arguments.OF_WHOLE_MODULES

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        tensor_parallel_size: int = 1,
        block_sync: BlockSync | None = None,
        warmup_steps: int | Auto = 0,
        ranks_per_device: int = 1,
        offload_outer_state: bool = False,
        save_distributed_checkpoint: bool = True,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        check_whole_or_auto("warmup_steps", warmup_steps, least=0)
        check_whole("tensor_parallel_size", tensor_parallel_size)
        check_flag("save_distributed_checkpoint", save_distributed_checkpoint)
        check_flag("offload_outer_state", offload_outer_state)
        self._checkpoints = RunCheckpoints(self)
        super().__init__(
            group_size=group_size,
            warmup_steps=0 if warmup_steps == "auto" else warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            tensor_parallel_size=tensor_parallel_size,
            save_distributed_checkpoint=save_distributed_checkpoint,
        )
        check_synchronisations(None, block_sync, {})
        if block_sync is not None and block_sync.across == "leader":
            raise ValueError(
                "across='leader' can't be combined with a divided module, of which no rank holds "
                "all: leave it out, and every rank exchanges its shards"
            )
        self.tensor_parallel_size = tensor_parallel_size
        self.offload_outer_state = offload_outer_state
        self.save_distributed_checkpoint = save_distributed_checkpoint
        self._asked = Synchronisation(warmup_steps, AllReduce(), block_sync)
        self.block_sync = block_sync

    @override
    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "tensor_parallel_size": self.tensor_parallel_size,
            "offload_outer_state": self.offload_outer_state,
        }

    @override
    def _check_groups(self, layout: RankLayout) -> None:
        if layout.sizes[0] % self.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_size must divide group_size, got {self.tensor_parallel_size} in "
                f"groups of {layout.sizes[0]} ranks"
            )
        super()._check_groups(layout)

    @override
    def _check_trainer(self, trainer: pl.Trainer) -> None:
        check_batch_norm(self._module, self.communicators.group.ranks)
        if self._layer_sync is not None:
            raise ValueError(
                "sync_batchnorm=True has no effect on a divided module: leave it out, and convert "
                "layers in configure_model(), by torch.nn.SyncBatchNorm.convert_sync_batchnorm("
                "self, self.device_mesh.get_group('data_parallel'))"
            )
        averages = [c for c in trainer.callbacks if isinstance(c, both(WeightAveraging))]  # type: ignore[attr-defined]
        if averages:
            raise ValueError(
                f"{type(averages[0]).__name__} can't be combined with a divided module, of which "
                "no rank holds all: leave it out"
            )
        for callback in trainer.checkpoint_callbacks if self.save_distributed_checkpoint else ():
            local_path(getattr(callback, "dirpath", None) or "")

    @override
    def _configure_launcher(self) -> None:
        # Lightning has none if torchrun starts the processes, but the base class needs one.
        self._launcher: Any = launch.InProcess()
        super()._configure_launcher()

    @override
    def _start_processes(self) -> None:
        self._setup_distributed()  # without the mesh of the world

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        self._start_compared = True  # Lightning loads a checkpoint after ``setup``
        self._device_mesh = self._mesh_of_group()
        self._module._device_mesh = self._device_mesh

    def _mesh_of_group(self) -> DeviceMesh:
        """Mesh of this rank's group, for a divided module. A collective of the world."""
        layout, rank, groups = self.layout, self.global_rank, dict[str, Any]()
        # Tensor-parallel ranks are consecutive, close together: every layer communicates.
        grids = layout.grid().view(layout.sizes[1], -1, self.tensor_parallel_size)
        for name, rows in (
            ("data_parallel", [column for grid in grids for column in grid.T]),
            ("tensor_parallel", [row for grid in grids for row in grid]),
        ):
            for ranks in rows:  # those of all groups, because all ranks must create every group
                group = SHARED.of(ranks.tolist(), self.limit, name)
                if rank in ranks:
                    groups[name] = group
        return DeviceMesh.from_group(
            list(groups.values()),
            self.root_device.type,
            mesh=grids[layout.coordinates(rank)[1]],
            mesh_dim_names=tuple(groups),
        )

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        mesh = self.device_mesh["data_parallel"]
        group = self.layout.coordinates(self.global_rank)[1]
        return {
            "num_replicas": self.layout.sizes[1] * mesh.size(),
            "rank": group * mesh.size() + mesh.get_local_rank(),
        }

    @override
    def _check_data(self) -> None:
        data_checks.check_parts(self._module.trainer)
        super()._check_data()

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        with raise_everywhere(self.root_device):
            module_setup.check_divided(self._module, self.device_mesh)
        self._prepare_fit(self.device_mesh)
        super().setup_optimizers(trainer)

    @override
    def _begin_fit(self, trainer: pl.Trainer) -> None:
        self._open_session(None, lambda _: self._module, offload=self.offload_outer_state)

    @override
    def on_train_start(self) -> None:
        reshard_(self._module)  # after the sanity check
        super().on_train_start()

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint and the state of all ranks. A collective of the world.

        Raises:
            TypeError: ``storage_options`` are given for a folder.
            ValueError: a folder is to be saved to a URL.
            FileExistsError: on every rank, if the path exists and is no checkpoint of this format.

        """
        path = self.broadcast(filepath)
        if self.save_distributed_checkpoint:
            local_path(path)
            if storage_options is not None:
                raise TypeError(
                    "storage_options are those of a CheckpointIO, which does not write the folder "
                    "of a divided module: leave them out, or set save_distributed_checkpoint=False"
                )
        with raise_everywhere(self.root_device, error=FileExistsError):
            check_replaceable(path, by_folder=self.save_distributed_checkpoint)
        write = partial(self._write, path=path, storage_options=storage_options)
        self._save(checkpoint, path, write, storage_options)

    def _write(self, checkpoint: dict[str, Any], path: str, storage_options: Any | None) -> None:
        """Write the checkpoint of the first group, whose model all groups have."""
        if self.save_distributed_checkpoint:
            if self.layout.coordinates(self.global_rank)[1] == 0:
                save_folder(checkpoint, local_path(path), self.communicators.group.group)
        elif self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)

    @override
    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint into module and optimizers. A collective of the world."""
        safe = True if weights_only is None else weights_only
        # torch creates the state of optimizers by a step with a learning rate of 0.
        session, sync = self._session, self.block_sync
        counted = nullcontext() if session is None else session.raw_steps.counted()
        with (
            counted,
            module_setup.unwrapped(self._module),
            on_every_host(checkpoint_path, self) as path,
        ):
            # Before the load, which would mix the settings of both or fail without naming any.
            with raise_everywhere(self.root_device):
                states = saved_optimizers(path, weights_only=safe)
                if self.optimizers and states is not None:
                    optimizer_checks.check_saved_optimizers(states, self.optimizers)
            for optimizer in self.optimizers:
                if sync is not None:
                    sync.prepare_to_load(optimizer)
            # Not the comparison of the base class, as ranks read different parts of a folder.
            checkpoint = self._lightning.load_checkpoint(path, safe)
        self._checkpoints.note(checkpoint_path, weights_only, checkpoint)
        if session is not None:
            self._check_automatic(checkpoint_path)
        return {"optimizer_states": [], **checkpoint}  # without them, Lightning restores no state

    def _check_automatic(self, path: str | Path) -> None:
        """Check that ``"auto"`` stands for the numbers of the saved run.

        Lightning loads the checkpoint of a divided module after the optimizers are set up, when
        these numbers are in use.
        """
        saved = self._checkpoints.automatic_values
        used = automatic_values(self._used)
        names = [n for n in self._asked.automatic if saved.get(n) not in (None, used[n])]
        if saved.get("run_steps") == used["run_steps"]:  # momentum follows the number of groups
            names = [name for name in names if name not in MOMENTUM]
        # It would be another number beside a block_size of the user's own.
        if "block_size" in names and saved.get("moments_every") is not None:
            names = [*dict.fromkeys([*names, "moments_every"])]
        if names:
            before = ", ".join(f"{name}={saved[name]}" for name in names)
            now = ", ".join(f"{name}={used[name]}" for name in names)
            raise ValueError(
                f"the run that saved {path} began with {before}, and 'auto' is {now} in this run, "
                f"which has another length: set {before}"
            )

    @property
    @override
    def lightning_restore_optimizer(self) -> bool:
        return True  # it calls ``load_optimizer_state_dict``

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Do nothing: ``load_checkpoint`` has loaded the model."""

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Resume the saved run, and warn about lost state. A collective of the world."""
        self._checkpoints.resume(self._fit_session, checkpoint)
