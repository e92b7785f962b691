"""Base class of all strategies: groups of ranks, and settings that are equal on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.callbacks.metrics import HierarchyMetrics
from lightning_hier.callbacks.packages import both, check_package, described_package
from lightning_hier.comm.agreement import broadcast_json, raise_everywhere, require_same
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gloo_connections import recorded_connections
from lightning_hier.comm.process_groups import SHARED, destroy_groups_at_exit, keep_groups_at_exit
from lightning_hier.comm.progress_record import naming_missing, progress_record
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.loop.groups import ranks_of_group
from lightning_hier.loop.optimizer_checks import require_same_optimizers
from lightning_hier.loop.settings import check_group_size, check_timeout, described
from lightning_hier.strategies import (
    arguments,
    data_checks,
    launch,
    trainer_checks,
)
from lightning_hier.strategies.checkpoints.atomic_io import atomic
from lightning_hier.strategies.checkpoints.saved_run import read_same


class TieredStrategy(ParallelStrategy, ABC):
    """A strategy whose ranks form groups.

    A subclass also inherits from DDPStrategy or ModelParallelStrategy. In a worker of Ray Train,
    ``devices`` and ``num_nodes`` of the Trainer have no effect.

    Args:
        group_size, warmup_steps, timeout: see the subclasses.
        ranks_per_device: ranks that share each device. All ranks of a host are its node.
        **kwargs: arguments of that strategy of Lightning.

    Attributes:
        of_ddp: arguments of ``DistributedDataParallel``.
        limit: time limit of every wait.
        package: package whose Trainer takes the strategy.

    Raises:
        ValueError: a value is outside its range, or values cannot be combined.

    """

    strategy_name = "tiered"
    package = "lightning.pytorch"
    _communicators: Communicators | None = None
    _generation = 0  # of the process groups
    of_ddp: Mapping[str, Any] = {}
    _session: Any = None  # while a Trainer fits
    _ended: Any = None  # the previous session, for a checkpoint that is saved after training
    # Attributes that hold process groups or a Trainer, which a copy does not have.
    _of_run: tuple[str, ...] = ("_communicators", "_session", "_ended", "_metrics_callback")

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        warmup_steps: int = 0,
        ranks_per_device: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **kwargs: Any,
    ) -> None:
        # The parser of the command line resolves **kwargs only if the name is passed unchanged.
        if isinstance(self, both(DDPStrategy)):
            kwargs = arguments.without_taken(type(self), kwargs)
            lightnings = signature(DDPStrategy).parameters
            self.of_ddp = {name: kwargs[name] for name in kwargs if name not in lightnings}
        kwargs = arguments.for_ranks_of_a_device(ranks_per_device, kwargs)
        check_timeout(timeout)
        self.limit = timeout or default_pg_timeout
        self.ranks_per_device = ranks_per_device  # before the devices are set
        super().__init__(timeout=timeout, **kwargs)  # type: ignore[call-arg]
        check_group_size(group_size)
        check_whole("warmup_steps", warmup_steps, least=0)
        self.group_size: GroupSize = group_size
        self.warmup_steps = warmup_steps
        self.traffic = Traffic()

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, without process groups: some packages copy a Trainer after training."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in self._of_run}

    def __repr__(self) -> str:
        # The Trainer of the other package has it in its error, before anything here is called.
        return described_package(self)

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Further settings by name, which must be equal on all ranks."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Metrics by the names under which they are logged.

        The values are those of this rank. Does not communicate.
        """

    def _check_groups(self, layout: RankLayout) -> None:
        """Raise ValueError if the settings do not match the groups, which divide the ranks."""

    @abstractmethod
    def _check_trainer(self, trainer: pl.Trainer) -> None:
        """Raise ValueError if a setting of the Trainer cannot be combined with the strategy."""

    @abstractmethod
    def _check_optimizers(self) -> None:
        """Raise ValueError if the optimizers cannot be combined with the strategy."""

    @abstractmethod
    def _begin_fit(self, trainer: pl.Trainer) -> None:
        """Prepare training. All checks except those of the data have passed."""

    def describe(self) -> dict[str, Any]:
        """Return name, ranks and settings as JSON values. The environment must be set up."""
        description: dict[str, Any] = {
            "strategy": self.strategy_name,
            "class": type(self).__name__,
            "warmup_steps": self.warmup_steps,
            "ranks": self.world_size,
            "ranks_per_device": self.ranks_per_device,
            "hosts": self.world_size // self.num_processes,
            "groups": self.layout.sizes[1],
            "ranks_per_group": self.layout.sizes[0],
        }
        return description | described(self._settings())

    @cached_property
    def _metrics_callback(self) -> HierarchyMetrics:
        return HierarchyMetrics(self.metrics, self.describe)

    @property
    def communicators(self) -> Communicators:
        """Process groups and rank layout. The environment must be set up."""
        if self._communicators is None:
            raise RuntimeError("there are no process groups before the Trainer starts")
        return self._communicators

    @property
    def layout(self) -> RankLayout:
        """Assignment of ranks to groups."""
        return self.communicators.layout

    @property
    @override
    def root_device(self) -> torch.device:
        if launch.in_ray(self):
            return launch.worker_device()
        return torch.device(self._lightning.root_device)

    @property
    @override
    def parallel_devices(self) -> list[torch.device] | None:
        """The device of each rank of this host. Those that ranks share are repeated."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        # Lightning takes the number of ranks of a host, and the device of each, from this list.
        repeated = [device for device in devices or () for _ in range(self.ranks_per_device)]
        self._parallel_devices = repeated or None

    @property
    def num_processes(self) -> int:
        """Ranks on this host."""
        if launch.in_ray(self):
            return launch.workers_on_this_host()
        return int(self._lightning.num_processes)

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self) -> None:
        """Set the number of this rank and the number of all ranks in the cluster environment."""
        self._lightning.set_world_ranks()
        launch.let_prepare_trainer_accept(TieredStrategy)

    @override
    def _configure_launcher(self) -> None:
        check_package(self)
        if self.ranks_per_device > 1:
            launch.check_ranks_per_device(self, self.ranks_per_device)
        super()._configure_launcher()
        # Wraps the whole run, because metrics and hooks of the user may call collectives too.
        launcher: Any = self.launcher
        launcher.launch = partial(launcher.launch, launch.run)

    def _start_processes(self) -> None:
        """Set up the device, and the process group of the world."""
        with recorded_connections():
            super().setup_environment()

    @override
    def setup_environment(self) -> None:
        destroy_groups_at_exit(self)
        launch.warn_of_shared_store()
        # Before the device is set up, because the process may not have this device.
        launch.check_world(self.world_size)
        self._start_processes()
        launch.unbind_from_device()  # before the first process group of this package
        self._start_compared = False
        generation = SHARED.renew(self.root_device)  # a collective, before any rank may return
        if self._communicators is not None and generation == self._generation:
            return  # a Trainer that validates or tests after fit keeps its process groups
        hosts = launch.host_of_ranks(self, self.num_processes)
        with raise_everywhere(self.root_device):
            size = ranks_of_group(self.group_size, hosts)
            layout = RankLayout.two_tiers(size, len(hosts))
            self._check_groups(layout)
        same: dict[str, Any] = {"strategy": type(self).__name__, "device": self.root_device.type}
        same |= {"timeout": str(self.limit), "group_size": size}
        same |= {"ranks_per_device": self.ranks_per_device, "warmup_steps": self.warmup_steps}
        # Compared first: with another group size, ranks would create other process groups and hang.
        require_same(same | described(self._settings()), self.root_device)
        self._generation = generation
        self._communicators = Communicators.build(
            layout,
            device=self.root_device,
            timeout=self.limit,
            traffic=self.traffic,
            host_of=hosts,
            process_groups=SHARED,
        )

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Check model, Trainer and optimizers on all ranks. A collective of the world."""
        # Ranks with a checkpoint have compared it when they loaded it. The others take part here.
        if not self._start_compared:
            self._start_compared = True
            read_same(None, self.root_device)
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            trainer_checks.check_on_all_ranks(trainer, self._check_trainer)
        super().setup(trainer)
        if fitting:  # only now has Lightning called configure_optimizers
            with raise_everywhere(self.root_device):
                self._check_optimizers()
            require_same_optimizers(self._module, self.optimizers, self.root_device)
            self._begin_fit(trainer)

    @override
    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        with naming_missing(f"the barrier {name!r}" if name else "a barrier"):
            self._lightning.barrier(name)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the value of rank ``src``, which JSON must represent. Paths become text."""
        return broadcast_json(obj, src, self.root_device)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        with naming_missing("a reduction over all ranks", group):
            return self._lightning.reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        with naming_missing("a gather from all ranks", group):
            return super().all_gather(tensor, group, sync_grads)

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """The plugin that writes checkpoints: by default one whose files are complete or absent."""
        self._checkpoint_io = io = atomic(self._checkpoint_io)
        return io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint, by default with ``weights_only=True``. A collective of the world."""
        self._start_compared = True
        safe = True if weights_only is None else weights_only
        read = partial(super().load_checkpoint, checkpoint_path, safe)
        return read_same(read, self.root_device)

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the state of the module in the precision in which it will be trained."""
        if isinstance(self.precision_plugin, both(DoublePrecision)):
            # Lightning converts the module later, so values would be rounded to 32 bits here.
            self._module.double()
        super().load_model_state_dict(checkpoint, strict)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._check_data()

    def _check_data(self) -> None:
        """Check the training data of all ranks. A collective of the world."""
        data_checks.check_even(data_checks.check_data(self._module.trainer))

    @override
    def on_exception(self, exception: BaseException) -> None:
        if self.lightning_module is not None:
            trainer_checks.explain(exception, self.lightning_module, self.strategy_name)
        super().on_exception(exception)
        if dist.is_initialized():
            progress_record().note_error(exception)
        keep_groups_at_exit()

    def forget_groups(self) -> None:
        """Drop every reference to a process group when the process exits."""
        self._communicators = None
        self._session = self._ended = None

    @property
    def _lightning(self) -> Any:
        """Methods of the strategy of Lightning from which the subclass inherits as well."""
        return super()

    @property
    def _module(self) -> pl.LightningModule:
        if self.lightning_module is None:
            raise RuntimeError("the strategy has no module: pass it to a Trainer")
        return self.lightning_module
