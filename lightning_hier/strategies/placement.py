"""Where ranks are, as Lightning or Ray says, and which of them are missing from a collective."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_hier.comm.agreement import broadcast_json, gather_json
from lightning_hier.comm.broadcast import ddp_problem
from lightning_hier.comm.progress_record import progress_record
from lightning_hier.strategies import ray_train


class PlacedStrategy(DDPStrategy):
    """A strategy that knows where its ranks are, and whose errors name those that are missing.

    In a worker of Ray Train it goes by what Ray has decided: the Trainer's ``devices`` and
    ``num_nodes`` do not count there.

    Attributes:
        has_trainer: whether a Trainer has taken it.

    """

    has_trainer = False

    @property
    @override
    def root_device(self) -> torch.device:
        return ray_train.worker_device() if self._in_ray else super().root_device

    @property
    @override
    def num_processes(self) -> int:
        """Ranks on this host."""
        return ray_train.workers_on_this_host() if self._in_ray else super().num_processes

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @override
    def set_world_ranks(self) -> None:
        self.has_trainer = True  # which is the first to call this
        super().set_world_ranks()
        ray_train.let_prepare_trainer_accept(PlacedStrategy)

    @override
    def setup_environment(self) -> None:
        # Before the device is set up, which may be one that this process does not have.
        check_world(self.world_size)
        super().setup_environment()
        unbind_from_device()

    @override
    def _configure_launcher(self) -> None:
        super()._configure_launcher()
        # Around all that a Trainer does: metrics and hooks of the user may have collectives too.
        launcher: Any = self.launcher
        launcher.launch = partial(launcher.launch, _naming_missing)

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        problem = ddp_problem(model, dist.get_backend())
        if problem is not None:
            raise ValueError(problem)
        return super()._setup_model(model)

    @override
    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks. A collective of the world."""
        with _all_ranks(f"the barrier {name!r}" if name else "a barrier"):
            super().barrier(name, *args, **kwargs)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What rank ``src`` gives, on every rank, if JSON carries it exactly; paths become text.

        Nothing is unpickled. A collective of the world: every rank must call it.

        Raises:
            TypeError: on every rank, if JSON can't carry it.

        """
        return broadcast_json(obj, src, self.root_device)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combine a tensor over all ranks, or over ``group``. A collective of them."""
        with _all_ranks("a reduction over all ranks", group):
            return super().reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensors of all ranks, or of those of ``group``. A collective of them."""
        with _all_ranks("a gather from all ranks", group):
            return super().all_gather(tensor, group, sync_grads)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's step. A collective of its group where DDP broadcasts buffers."""
        with self._in_group():
            return super().training_step(*args, **kwargs)

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients, and average them. A collective of the group."""
        with self._in_group():
            return super().backward(*args, **kwargs)

    def _in_group(self) -> AbstractContextManager[None]:
        """Name the missing ranks of the group if what DDP does by itself fails."""
        if not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        ranks = dist.get_process_group_ranks(self.model.process_group)
        return progress_record().explaining(ranks)

    def _node_groups_problem(self) -> str | None:
        """Why the ranks of one host can't make up a group, or None.

        Under Ray a collective of the world: every rank must call it.
        """
        if not self._in_ray:
            return None  # Lightning starts equally many ranks on every host
        return ray_train.node_groups_problem(self._host_of_ranks())

    def _host_of_ranks(self) -> list[int]:
        """For each rank the number of its host. Under Ray a collective of the world."""
        if self._in_ray:
            place = "the exchange of hosts"
            return gather_json(ray_train.host_index(), self.root_device, place=place)
        # Lightning starts equally many ranks on every host, one host after the other.
        return [rank // self.num_processes for rank in range(self.world_size)]

    @property
    def _on_one_host(self) -> bool:
        return self.num_processes == self.world_size

    @property
    def _in_ray(self) -> bool:
        return ray_train.is_ray(self.cluster_environment)


def _all_ranks(place: str, group: Any = None) -> AbstractContextManager[None]:
    """What a collective of ``group`` runs in; None and the default group are all ranks."""
    if not dist.is_initialized():
        return nullcontext()
    if group in (None, dist.group.WORLD):
        return progress_record().at(place)
    return progress_record().explaining(dist.get_process_group_ranks(group))


def _naming_missing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if not dist.is_initialized():
            raise
        with progress_record().explaining(range(dist.get_world_size())):
            raise error


def unbind_from_device() -> None:
    """Let groups be cut from a world over gloo, whatever device the ranks compute on.

    Lightning binds the world to the rank's GPU for NCCL's sake, whichever backend it has. torch
    then wants to split a communicator off it for every new group, of which gloo has none, and fails
    on the ranks outside that group.
    """
    if dist.get_backend() != dist.Backend.NCCL:
        dist.distributed_c10d._get_default_group().bound_device_id = None


def check_world(world_size: int) -> None:
    """Check that a Trainer counts as many ranks as are there already.

    Raises:
        ValueError: somebody else has started the ranks, and the Trainer does not know.

    """
    if dist.is_initialized() and dist.get_world_size() != world_size:
        raise ValueError(
            f"the Trainer counts {world_size} ranks, but {dist.get_world_size()} have been started "
            "and are in the process group: tell the Trainer who has started them. Inside Ray Train "
            "pass plugins=[RayLightningEnvironment()]; elsewhere num_nodes and devices must fit"
        )
