"""How the ranks were started: their hosts, the process group of the world, and restarts."""

from __future__ import annotations

import os

import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.comm.agreement import gather_json
from lightning_hier.strategies import ray_train


def in_ray(strategy: ParallelStrategy) -> bool:
    """Whether Ray Train has started this rank; then ``devices`` and ``num_nodes`` do not count."""
    return ray_train.is_ray(strategy.cluster_environment)


def host_of_ranks(strategy: ParallelStrategy, ranks_per_host: int) -> list[int]:
    """Return the number of the host of each rank. Under Ray a collective of the world."""
    if in_ray(strategy):
        place = "the exchange of hosts"
        return gather_json(ray_train.host_index(), strategy.root_device, place=place)
    # Lightning starts equally many ranks on every host, one host after the other.
    return [rank // ranks_per_host for rank in range(strategy.world_size)]


def unbind_from_device() -> None:
    """Let groups be cut from a world over gloo, whatever device the ranks compute on.

    Lightning binds the world to the rank's GPU for NCCL's sake, whichever backend it has. torch
    then wants to split a communicator off it for every new group, of which gloo has none, and fails
    on the ranks outside that group.
    """
    if dist.get_backend() != dist.Backend.NCCL:
        dist.distributed_c10d._get_default_group().bound_device_id = None


def check_world(world_size: int) -> None:
    """Check that the Trainer counts as many ranks as the process group has.

    Raises:
        ValueError: another launcher has started the ranks, and the Trainer is not set for it.

    """
    if dist.is_initialized() and dist.get_world_size() != world_size:
        raise ValueError(
            f"the Trainer counts {world_size} ranks, but {dist.get_world_size()} have been started "
            "and are in the process group: tell the Trainer who has started them. Inside Ray Train "
            "pass plugins=[RayLightningEnvironment()]; elsewhere num_nodes and devices must fit"
        )


def warn_of_shared_store() -> None:
    """Warn if torchrun may start ranks again, and they would meet at the store of those before.

    Of its own accord torchrun (2.11) keeps one store for all starts. The new ranks find addresses
    of the dead there, and try to connect to them until a time limit ends that start too.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        rank_zero_warn(
            f"torchrun may start the ranks again (--max-restarts {restarts}), but they would find "
            "the addresses of those before and fail to connect: set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun"
        )
