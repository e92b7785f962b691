"""Where ranks are: on which device and host, as Lightning says, or Ray in a worker of Ray Train."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from typing_extensions import override

from lightning_hier.comm.agreement import gather_json
from lightning_hier.strategies import ray_train


class PlacedStrategy(DDPStrategy):
    """A strategy that knows where its ranks are.

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
            return gather_json(ray_train.host_index(), self.root_device)
        # Lightning starts equally many ranks on every host, one host after the other.
        return [rank // self.num_processes for rank in range(self.world_size)]

    @property
    def _on_one_host(self) -> bool:
        return self.num_processes == self.world_size

    @property
    def _in_ray(self) -> bool:
        return ray_train.is_ray(self.cluster_environment)


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
