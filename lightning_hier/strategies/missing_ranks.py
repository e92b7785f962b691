"""Names missing ranks in errors of Lightning's and DDP's own collectives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.progress_record import progress_record


def naming_missing(place: str, group: Any = None) -> AbstractContextManager[None]:
    """Name the missing ranks if a collective of ``group`` fails. None is the world."""
    if not dist.is_initialized():
        return nullcontext()
    if group in (None, dist.group.WORLD):
        return progress_record().at(place)
    return progress_record().explaining(dist.get_process_group_ranks(group))


def naming_missing_of_ddp(model: object) -> AbstractContextManager[None]:
    """Name the missing ranks of its group if DDP's own communication fails."""
    if not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return progress_record().explaining(dist.get_process_group_ranks(model.process_group))


def explained(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and name the missing ranks if a collective of the user in it fails."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if not dist.is_initialized():
            raise
        with progress_record().explaining(range(dist.get_world_size())):
            raise error
