"""Launch of the ranks: hosts, restarts, the process group of the world, and Ray Train.

Ray is never imported here. If a Trainer has Ray's environment, Ray is already loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import call_naming_missing
from lightning_hier.strategies.checkpoints.newest import last_at_url

_RAY = "ray.train.lightning"


def in_ray(strategy: ParallelStrategy) -> bool:
    """Whether Ray Train has started this rank. Then ``devices`` and ``num_nodes`` are ignored."""
    ray = sys.modules.get(_RAY)
    return ray is not None and isinstance(strategy.cluster_environment, ray.RayLightningEnvironment)


def check_ranks_per_device(strategy: Any, ranks_per_device: int) -> None:
    """Check that a launcher of the user starts all ranks that share the devices.

    Raises:
        ValueError: it starts another number of ranks, or it is Ray, which assigns the devices.

    """
    if in_ray(strategy):
        raise ValueError(
            f"ranks_per_device={ranks_per_device} can't be used in Ray Train, which assigns the "
            "devices: leave it out, and let workers share a GPU by ScalingConfig(num_workers=..., "
            f"resources_per_worker={{'GPU': {1 / ranks_per_device:.3g}}}) and "
            "TorchConfig(backend='gloo')"
        )
    environment, here = strategy.cluster_environment, strategy.num_processes
    if environment is None or not environment.creates_processes_externally:
        return
    needed, started = here * strategy.num_nodes, environment.world_size()
    if started != needed:
        raise ValueError(
            f"ranks_per_device={ranks_per_device} makes {here} ranks on each of "
            f"{strategy.num_nodes} hosts, {needed} in all, but {started} processes were started: "
            f"start {here} on each host (torchrun --nproc-per-node {here}, srun --ntasks-per-node "
            f"{here}), or set ranks_per_device, devices and num_nodes of the Trainer accordingly"
        )


class InProcess:
    """Runs the Trainer in this process, which another launcher has started."""

    is_interactive_compatible = True

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any
    ) -> Any:
        """Call ``function``, if the Trainer counts the ranks that were started."""
        strategy = trainer.strategy
        strategy.cluster_environment.validate_settings(
            num_devices=strategy.num_processes, num_nodes=strategy.num_nodes
        )
        return function(*args, **kwargs)

    def kill(self, signum: int) -> None:
        """Do nothing: that launcher sends signals to the processes that it has started."""


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a Trainer in a launched process: ``function`` is one of its methods.

    ``ckpt_path="last"`` becomes a URL if the last checkpoint has one. Lightning loses the protocol
    of URLs, finds no checkpoint and starts from the beginning.
    """
    trainer: Any = getattr(function, "__self__", None)
    args = tuple(
        last_at_url(trainer) or a if isinstance(a, str) and a == "last" else a for a in args
    )
    return call_naming_missing(function, *args, **kwargs)


def host_of_ranks(strategy: ParallelStrategy, ranks_per_host: int) -> list[int]:
    """Return the host number of each rank. With Ray, a collective of the world."""
    if in_ray(strategy):
        host, place = int(_ray_context().get_node_rank()), "the exchange of hosts"
        return gather_json(host, strategy.root_device, place=place)
    # Lightning starts the same number of ranks on every host, one host after the other.
    return [rank // ranks_per_host for rank in range(strategy.world_size)]


def unbind_from_device() -> None:
    """Unbind the world's process group from the GPU, so that gloo can create groups.

    Lightning binds the world to the rank's GPU for NCCL, with any backend. torch then splits a
    communicator for every new group, which gloo does not have, and fails on ranks outside the
    group.
    """
    if dist.get_backend() != dist.Backend.NCCL:
        world: Any = dist.group.WORLD
        world.bound_device_id = None


def check_world(world_size: int) -> None:
    """Check that the Trainer and the process group have the same number of ranks.

    Raises:
        ValueError: the Trainer is not configured for the launcher that started the ranks.

    """
    # Ray creates the process group before the Trainer. Otherwise Lightning creates it later, for
    # as many ranks as the Trainer counts.
    if dist.is_initialized() and dist.get_world_size() != world_size:
        raise ValueError(
            f"the Trainer counts {counted(world_size, 'rank')}, but the process group has "
            f"{dist.get_world_size()}: configure the Trainer for the launcher. In Ray Train, pass "
            "plugins=[RayLightningEnvironment()]; otherwise set num_nodes and devices"
        )


def warn_of_shared_store() -> None:
    """Warn if torchrun may restart ranks that would use the store of the previous ranks.

    By default, torchrun (2.11) keeps one store for all starts. The new ranks find addresses of
    processes that no longer exist, and try to connect to them until a time limit.
    """
    # torchrun sets both variables for its ranks.
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        rank_zero_warn(
            f"torchrun may restart the ranks (--max-restarts {restarts}), but they would find the "
            "addresses of the previous ranks and fail to connect: set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun"
        )


@cache
def worker_device() -> torch.device:
    """The device that Ray has assigned to this worker. Cached, as it is read at every batch."""
    device: torch.device = import_module("ray.train.torch").get_device()
    return device


def workers_on_this_host() -> int:
    """Number of workers of the job on this host, as placed by Ray."""
    return int(_ray_context().get_local_world_size())


def let_prepare_trainer_accept(strategy_class: type) -> None:
    """Make Ray's ``prepare_trainer`` accept the strategies of this package, if Ray is loaded.

    It checks whether a strategy is a ``RayDDPStrategy``, that is, uses the device and the data
    assignment of Ray. The strategies do, without inheriting from a class that they cannot import.
    """
    ray = sys.modules.get(_RAY)
    if ray is not None:
        ray.RayDDPStrategy.register(strategy_class)


def _ray_context() -> Any:
    return import_module("ray.train").get_context()
