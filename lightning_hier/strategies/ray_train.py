"""What a strategy takes from Ray in a worker of Ray Train.

Ray is not imported for it: where a Trainer has Ray's environment, Ray has been loaded already, and
in all other processes nothing of Ray is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

_LIGHTNING_SIDE = "ray.train.lightning"


def is_ray(environment: object) -> bool:
    """Whether a cluster environment is Ray's (``RayLightningEnvironment``)."""
    ray_lightning = sys.modules.get(_LIGHTNING_SIDE)
    return ray_lightning is not None and isinstance(
        environment, ray_lightning.RayLightningEnvironment
    )


@cache
def worker_device() -> torch.device:
    """The device that Ray has given to this worker, which keeps it; asked at every batch."""
    device: torch.device = import_module("ray.train.torch").get_device()
    return device


def workers_on_this_host() -> int:
    """The number of the job's workers that Ray has placed on the host of this one."""
    return int(_context().get_local_world_size())


def host_index() -> int:
    """Which of the job's hosts this worker is on, in the order of the ranks."""
    return int(_context().get_node_rank())


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
    ray_lightning = sys.modules.get(_LIGHTNING_SIDE)
    if ray_lightning is not None:
        ray_lightning.RayDDPStrategy.register(strategy_class)


def _context() -> Any:
    return import_module("ray.train").get_context()
