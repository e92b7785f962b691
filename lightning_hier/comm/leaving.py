"""Leaving the job: process groups are destroyed before the interpreter ends."""

from __future__ import annotations

import atexit

import torch.distributed as dist


def destroy_groups_at_exit() -> None:
    """Destroy all process groups when this process ends in the ordinary way.

    gloo's threads drop references to Python objects after a collective has completed. If the
    interpreter is ending at that moment, the process aborts, although all its work is done.
    """
    stay_at_exit()
    atexit.register(_destroy_groups)


def stay_at_exit() -> None:
    """Leave the groups to the end of the process: after an error a collective may still be waiting.

    Destroying its group would wait for it, up to the time limit.
    """
    atexit.unregister(_destroy_groups)


def _destroy_groups() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
