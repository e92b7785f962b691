"""Process groups that all fits of a process share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import progress_record


class ProcessGroups:
    """Process groups by what they are for, made when they are first asked for.

    torch keeps a group, its connections and its threads until the process ends. If every fit of a
    cross-validation or of a sweep made its own, they would add up until there are no file
    descriptors left, and under NCCL no memory of the device.
    """

    def __init__(self) -> None:
        """There is none yet."""
        self._made: dict[tuple[tuple[int, ...], timedelta, str], dist.ProcessGroup] = {}
        self._world: dist.ProcessGroup | None = None
        self._in_doubt = False
        self._generation = 0

    def renew(self, device: torch.device) -> int:
        """Forget the groups if on any rank they are in doubt, or the world is another one.

        A collective of the world: every rank must call it before it asks for groups.

        Returns:
            A number that is another one from then on: groups that were asked for before must no
            longer be used.

        """
        world = dist.distributed_c10d._get_default_group()
        progress = progress_record()
        own = [progress.number, self._in_doubt or self._world is not world]
        numbers, doubts = zip(*gather_json(own, device, place="the start of a run"), strict=True)
        progress.align(numbers)
        if any(doubts):
            self._made.clear()
            self._generation += 1
        self._world, self._in_doubt = world, False
        return self._generation

    def of(self, ranks: Sequence[int], timeout: timedelta, name: str) -> dist.ProcessGroup:
        """The process group of some ranks for one purpose.

        Every rank of the world must call it, in the same order; on a rank that is not among
        ``ranks`` what is returned is no group (``torch.distributed.GroupMember``).

        Args:
            ranks: of the group.
            timeout: limit of every collective of the group.
            name: of the purpose. Groups of the same ranks for different purposes are different.

        """
        key = (tuple(ranks), timeout, name)
        if key not in self._made:
            # A group does not take over the time limit of the world it is cut from.
            self._made[key] = dist.new_group(ranks, timeout=timeout, group_desc=f"hier_{name}")
        return self._made[key]

    def doubt(self) -> None:
        """A collective may still be waiting in one of them, so the next fit makes new ones."""
        self._in_doubt = True

    def forget(self) -> None:
        """Drop every reference to a process group."""
        self._made.clear()
        self._world = None


SHARED = ProcessGroups()
"""Those of the strategies of this process."""
