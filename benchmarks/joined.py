"""A job that a bare rank joins and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
