"""Process groups that all fits of a process share, and their destruction at exit."""

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
from lightning_hier.comm.gloo_connections import recorded_connections
from lightning_hier.comm.progress_record import progress_record


class ProcessGroups:
    """Process groups by ranks and purpose, created at their first use.

    torch keeps a group, its connections and its threads until the process ends. If every fit of a
    cross-validation or a sweep created new groups, the process would run out of file descriptors
    and, with NCCL, of device memory.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[tuple[int, ...], timedelta, str], dist.ProcessGroup] = {}
        self._world: dist.ProcessGroup | None = None
        self._in_doubt = False
        self._generation = 0

    def renew(self, device: torch.device) -> int:
        """Drop the groups if :meth:`doubt` was called on any rank, or if the world has changed.

        A collective of the world: every rank must call it before it requests groups.

        Returns:
            A generation number. Groups of an older generation must not be used.

        """
        world = dist.group.WORLD
        progress = progress_record()
        state = [progress.number, self._in_doubt or self._world is not world]
        numbers, doubts = zip(*gather_json(state, device, place="the start of a run"), strict=True)
        # Ranks may have failed at different collectives of an earlier fit.
        progress.align(numbers)
        # On all ranks or on none: a group is created by all ranks together.
        if any(doubts):
            self._groups.clear()
            self._generation += 1
        self._world, self._in_doubt = world, False
        return self._generation

    def of(self, ranks: Sequence[int], timeout: timedelta, name: str) -> dist.ProcessGroup:
        """Return the process group of some ranks for one purpose, and create it if needed.

        Every rank of the world must call it, in the same order. On ranks that are not members, it
        returns no group (``torch.distributed.GroupMember``).

        Args:
            ranks: ranks of the group.
            timeout: time limit of every collective of the group.
            name: name of the purpose. Groups of the same ranks for different purposes are
                different.

        """
        key = (tuple(ranks), timeout, name)
        if key not in self._groups:
            # A group does not inherit the time limit of the world, but has torch's own default.
            with recorded_connections():
                group = dist.new_group(ranks, timeout=timeout, group_desc=f"hier_{name}")
            self._groups[key] = group
        return self._groups[key]

    def doubt(self) -> None:
        """Make the next fit create new groups, because a collective may still wait in these."""
        self._in_doubt = True

    def forget(self) -> None:
        """Drop every reference to a process group."""
        self._groups.clear()
        self._world = None


SHARED = ProcessGroups()
"""Process groups of all strategies in this process."""


class HoldsGroups(Protocol):
    """Object that refers to process groups and outlives their use."""

    def forget_groups(self) -> None:
        """Drop every reference to a process group."""


_holders: WeakSet[HoldsGroups] = WeakSet()


def destroy_groups_at_exit(holder: HoldsGroups) -> None:
    """Destroy all process groups when this process exits normally.

    gloo's threads drop references to Python objects after a collective has completed. If the
    interpreter exits at this moment, the process aborts although all its work is done. The threads
    are joined when the last reference to their group is dropped, so all references are dropped.

    Call this function before the default group is created.

    Args:
        holder: object whose groups are dropped at exit if it still exists.

    """
    # DDP imports this module later, and an import while a default group exists would keep a
    # reference to this group.
    importlib.import_module("torch._dynamo")
    # Once, whatever number of strategies and fits this process has.
    atexit.unregister(_destroy_groups)
    _holders.add(holder)
    atexit.register(_destroy_groups)


def keep_groups_at_exit() -> None:
    """Do not destroy the groups at exit, because after an error a collective may still wait.

    Destroying its group would block up to the time limit. A later fit in this process creates new
    groups.
    """
    atexit.unregister(_destroy_groups)
    SHARED.doubt()


def _destroy_groups() -> None:
    # References first: a thread of gloo is joined only when the last one is dropped.
    for holder in list(_holders):
        holder.forget_groups()
    SHARED.forget()
    if dist.is_initialized():
        dist.destroy_process_group()
    # Trainers, modules and hooks form reference cycles, which only the collector frees.
    gc.collect()
