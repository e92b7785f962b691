"""Process groups that all fits of a process share, and their end before the interpreter's."""

from __future__ import annotations

import atexit
import gc
import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import progress_record


class ProcessGroups:
    """Process groups by ranks and purpose, created at their first use.

    torch keeps a group, its connections and its threads until the process ends. If every fit of a
    cross-validation or of a sweep created its own, file descriptors, and under NCCL memory of the
    device, would run out.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[tuple[int, ...], timedelta, str], dist.ProcessGroup] = {}
        self._world: dist.ProcessGroup | None = None
        self._in_doubt = False
        self._generation = 0

    def renew(self, device: torch.device) -> int:
        """Drop the groups if any rank has reason to doubt them, or the world has changed.

        A collective of the world: every rank must call it before it asks for groups.

        Returns:
            A generation number. Groups of an older generation must no longer be used.

        """
        world = dist.distributed_c10d._get_default_group()
        progress = progress_record()
        own = [progress.number, self._in_doubt or self._world is not world]
        numbers, doubts = zip(*gather_json(own, device, place="the start of a run"), strict=True)
        progress.align(numbers)
        if any(doubts):
            self._groups.clear()
            self._generation += 1
        self._world, self._in_doubt = world, False
        return self._generation

    def of(self, ranks: Sequence[int], timeout: timedelta, name: str) -> dist.ProcessGroup:
        """The process group of some ranks for one purpose.

        Every rank of the world must call it, in the same order. On other ranks it returns no group
        (``torch.distributed.GroupMember``).

        Args:
            ranks: ranks of the group.
            timeout: limit of every collective of the group.
            name: name of the purpose. Groups of the same ranks for different purposes are
                different.

        """
        key = (tuple(ranks), timeout, name)
        if key not in self._groups:
            # A group does not inherit the time limit of the world.
            self._groups[key] = dist.new_group(ranks, timeout=timeout, group_desc=f"hier_{name}")
        return self._groups[key]

    def doubt(self) -> None:
        """Have the next fit create new groups: a collective may still be waiting in these."""
        self._in_doubt = True

    def forget(self) -> None:
        """Drop every reference to a process group."""
        self._groups.clear()
        self._world = None


SHARED = ProcessGroups()
"""Process groups of the strategies of this process."""


class HoldsGroups(Protocol):
    """Object that refers to process groups and outlives their use."""

    def forget_groups(self) -> None:
        """Drop every reference to a process group."""


_holders: WeakSet[HoldsGroups] = WeakSet()


def destroy_groups_at_exit(holder: HoldsGroups) -> None:
    """Destroy all process groups when this process exits normally.

    gloo's threads drop references to Python objects after a collective has completed. If the
    interpreter is exiting at that moment, the process aborts, although all its work is done. The
    threads are joined when the last reference to their group is gone, so references go too.

    Call it before the default group is created.

    Args:
        holder: drops its groups if it still exists by then.

    """
    # DDP imports it, and an import while there is a default group keeps that group for ever.
    importlib.import_module("torch._dynamo")
    atexit.unregister(_destroy_groups)
    _holders.add(holder)
    atexit.register(_destroy_groups)


def keep_groups_at_exit() -> None:
    """Leave the groups to the end of the process: after an error a collective may still wait.

    Destroying its group would block up to the time limit. A later fit in this process creates new
    groups.
    """
    atexit.unregister(_destroy_groups)
    SHARED.doubt()


def _destroy_groups() -> None:
    for holder in list(_holders):
        holder.forget_groups()
    SHARED.forget()
    if dist.is_initialized():
        dist.destroy_process_group()
    # Trainers, modules and hooks refer to each other in cycles.
    gc.collect()
