"""The groups of a plain loop."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh

from lightning_hier.comm.agreement import gather_json, raise_everywhere, require_same
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.process_groups import SHARED, destroy_groups_at_exit
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.loop.settings import check_group_size, check_timeout


class Groups:
    """Ranks in groups: gradients are averaged inside a group, models across groups.

    A collective of the world: every rank must create it, after ``init_process_group``.

    Args:
        group_size: ranks of a group: a number, ``"node"`` (the ranks of one host) or ``"world"``
            (one group of all ranks). It must divide the number of ranks. A group consists of
            consecutive ranks.
        timeout: time limit of every collective, after which an error names the missing ranks. None
            is torch's default.
        device: device of this rank's model. By default the current GPU if the process group uses
            NCCL, otherwise the CPU.

    Attributes:
        mesh: the process groups as a DeviceMesh with the dimensions ``"across"`` and ``"group"``.
        device: see above.
        traffic: bytes and seconds by tier.
        limit: time limit of every collective.
        host_of: host number of each rank.

    Raises:
        RuntimeError: there is no process group yet.
        ValueError: on every rank, if the ranks cannot be divided into these groups, or have
            different settings.

    """

    def __init__(
        self,
        group_size: GroupSize = "node",
        *,
        timeout: timedelta | None = default_pg_timeout,
        device: torch.device | str | None = None,
    ) -> None:
        check_group_size(group_size)
        check_timeout(timeout)
        if not dist.is_initialized():
            raise RuntimeError(
                "Groups needs a process group: call torch.distributed.init_process_group() before"
            )
        destroy_groups_at_exit(self)
        self.device = _default_device() if device is None else torch.device(device)
        SHARED.renew(self.device)
        self.host_of = hosts = _hosts(self.device)
        with raise_everywhere(self.device, place="the creation of groups"):
            layout = RankLayout.two_tiers(ranks_of_group(group_size, hosts), len(hosts))
        self.limit = limit = timeout or default_pg_timeout
        # Compared first: with another size, ranks would create other process groups and hang.
        same = {"group_size": layout.sizes[0], "timeout": str(limit), "device": self.device.type}
        require_same(same, self.device)
        self.traffic = Traffic()
        self._communicators: Communicators | None = Communicators.build(
            layout,
            device=self.device,
            timeout=limit,
            traffic=self.traffic,
            host_of=hosts,
            process_groups=SHARED,
            own_world=True,  # dcp.async_save communicates in a thread meanwhile
        )

    def __repr__(self) -> str:
        """Layout, and the place of this rank in it."""
        layout = self.communicators.layout
        size, number = layout.sizes
        position, group = layout.coordinates(dist.get_rank())
        return f"Groups({number} of {size} ranks; this is rank {position} of group {group})"

    @property
    def communicators(self) -> Communicators:
        """Channels of this rank."""
        assert self._communicators is not None, "the process ends"
        return self._communicators

    @property
    def mesh(self) -> DeviceMesh:
        """The process groups as a DeviceMesh with the dimensions ``"across"`` and ``"group"``."""
        return self.communicators.mesh

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of this rank's group."""
        return self.communicators.group.group

    @property
    def across(self) -> dist.ProcessGroup:
        """Process group of the ranks at this rank's position in all groups."""
        return self.communicators.across.group

    def forget_groups(self) -> None:
        """Drop every reference to a process group when the process exits."""
        self._communicators = None


def _default_device() -> torch.device:
    # Not get_backend(), which is "undefined" if torch has chosen the backend.
    if "nccl" in dist.get_backend_config():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _hosts(device: torch.device) -> list[int]:
    """The host number of each rank. A collective of the world."""
    # The agent of torchrun as well: several on one machine are hosts of their own.
    host = [socket.gethostname(), os.environ.get("GROUP_RANK", "")]
    names = [tuple(name) for name in gather_json(host, device, place="the exchange of hosts")]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def ranks_of_group(group_size: GroupSize, hosts: list[int]) -> int:
    """The number of ranks of a group. Raises ValueError if the hosts cannot be groups.

    Args:
        group_size: as in :class:`Groups`.
        hosts: host number of each rank.

    """
    if group_size == "world":
        return len(hosts)
    if group_size != "node":
        return group_size
    counts = [hosts.count(host) for host in sorted(set(hosts))]
    # A group consists of consecutive ranks, so the ranks of a host must be consecutive.
    if hosts != sorted(hosts) or len(set(counts)) > 1:
        raise ValueError(
            "group_size='node' needs consecutive ranks on every host, and equally many, got hosts "
            f"{hosts} of the ranks: start as many on each, or pass a number as group_size"
        )
    return counts[0]
