"""Default process group of a rank without a Trainer, and an exchange of Python values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


@contextmanager
def joined(backend: str = "gloo") -> Iterator[None]:
    """Initialise the default process group, and destroy it at the end. All ranks must call it.

    Without this, threads of gloo may abort the process at the exit of the interpreter. After an
    error, the group is not destroyed, because this would wait for pending collectives.
    """
    dist.init_process_group(backend)
    yield
    dist.barrier()
    dist.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """Return the value of every rank, in order of rank. All ranks must call it."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
