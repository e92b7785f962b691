"""A job that a bare rank joins and leaves, and values that its ranks exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


@contextmanager
def joined(backend: str = "gloo") -> Iterator[None]:
    """Be in a job, and leave it when all ranks are done. Every rank must call it.

    gloo's threads may end by an abort a process that leaves its groups to the interpreter's end.
    After an error the groups are left, since destroying one waits for what it is waiting for.
    """
    dist.init_process_group(backend)
    yield
    dist.barrier()
    dist.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """The value of every rank, in order of rank. A collective of the world."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
