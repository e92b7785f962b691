"""Leaving the job: process groups and their threads end before the interpreter does."""

from __future__ import annotations

import atexit
import gc
import importlib
from typing import Protocol
from weakref import WeakSet

import torch.distributed as dist

from lightning_hier.comm.process_groups import SHARED


class HoldsGroups(Protocol):
    """Something that refers to process groups and outlives their use."""

    def forget_groups(self) -> None:
        """Drop every reference to a process group."""


_holders: WeakSet[HoldsGroups] = WeakSet()


def destroy_groups_at_exit(holder: HoldsGroups) -> None:
    """Destroy all process groups when this process ends in the ordinary way.

    gloo's threads drop references to Python objects after a collective has completed. If the
    interpreter is ending at that moment, the process aborts, although all its work is done. The
    threads are joined when the last reference to their group is gone, so references go too.

    Call it before the default group is made.

    Args:
        holder: told to forget its groups if it is still there by then.

    """
    # DDP imports it, and an import while there is a default group keeps that group for ever.
    importlib.import_module("torch._dynamo")
    atexit.unregister(_destroy_groups)
    _holders.add(holder)
    atexit.register(_destroy_groups)


def stay_at_exit() -> None:
    """Leave the groups to the end of the process: after an error a collective may still be waiting.

    Destroying its group would wait for it, up to the time limit. A fit that follows in this process
    makes new groups.
    """
    atexit.unregister(_destroy_groups)
    SHARED.doubt()


def _destroy_groups() -> None:
    for holder in list(_holders):
        holder.forget_groups()
    SHARED.forget()
    if dist.is_initialized():
        dist.destroy_process_group()
    # Trainers, modules and hooks refer to each other in circles.
    gc.collect()
