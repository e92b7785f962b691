"""How the ranks were started: their hosts, restarts, the world's process group, Ray Train.

Ray is not imported for it: where a Trainer has Ray's environment, Ray has been loaded already, and
in all other processes nothing of Ray is looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.comm.agreement import gather_json

_RAY = "ray.train.lightning"


def in_ray(strategy: ParallelStrategy) -> bool:
    """Whether Ray Train has started this rank; then ``devices`` and ``num_nodes`` do not count."""
    ray = sys.modules.get(_RAY)
    return ray is not None and isinstance(strategy.cluster_environment, ray.RayLightningEnvironment)


def host_of_ranks(strategy: ParallelStrategy, ranks_per_host: int) -> list[int]:
    """Return the number of the host of each rank. Under Ray a collective of the world."""
    if in_ray(strategy):
        own, place = int(_ray_context().get_node_rank()), "the exchange of hosts"
        return gather_json(own, strategy.root_device, place=place)
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


@cache
def worker_device() -> torch.device:
    """The device that Ray has given to this worker, which keeps it; asked at every batch."""
    device: torch.device = import_module("ray.train.torch").get_device()
    return device


def workers_on_this_host() -> int:
    """The number of the job's workers that Ray has placed on the host of this one."""
    return int(_ray_context().get_local_world_size())


def check_hosts(hosts: Sequence[int]) -> None:
    """Check that the workers of one host can make up a group.

    Args:
        hosts: for each rank, the host that it is on.

    Raises:
        ValueError: they can't. Other launchers than Ray have as many ranks on every host.

    """
    counts = [hosts.count(host) for host in sorted(set(hosts))]
    in_order = list(hosts) == sorted(hosts)
    if in_order and len(set(counts)) == 1:
        return
    raise ValueError(
        "group_size='node' needs the same number of workers on every host, but Ray has placed "
        f"{', '.join(map(str, counts))}: ask for as many workers as fill the hosts evenly "
        "(num_workers and resources_per_worker of ScalingConfig), or give group_size as a number"
    )


def let_prepare_trainer_accept(strategy_class: type) -> None:
    """Have Ray's ``prepare_trainer`` take our strategies, where Ray is loaded.

    It asks whether a strategy is a ``RayDDPStrategy``, which is one that takes its device and its
    share of the data from Ray. Ours do, without inheriting from a class that they can't import.
    """
    ray = sys.modules.get(_RAY)
    if ray is not None:
        ray.RayDDPStrategy.register(strategy_class)


def _ray_context() -> Any:
    return import_module("ray.train").get_context()
