"""The collectives by which Lightning and its callbacks reach all ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_hier.comm.agreement import broadcast_json, opened, sealed
from lightning_hier.comm.progress_record import progress_record

if TYPE_CHECKING:
    from lightning_hier.parameter_server.live_collectives import LiveCollectives


class Collectives(Protocol):
    """Collectives of a strategy. Every participating rank must call each of them."""

    def barrier(self, name: str | None) -> None:
        """Wait for the other ranks."""

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of rank ``source``. JSON must represent it: nothing is unpickled."""

    def reduce(self, tensor: Any, group: Any, operation: Any) -> Any:
        """Combine the tensors of all ranks, or of ``group``."""

    def all_gather(self, tensor: Tensor, group: Any, sync_grads: bool) -> Tensor:
        """Stack the tensors of all ranks, or of ``group``."""

    def decide(self, decision: bool, all_agree: bool) -> bool:
        """Return whether all ranks, or any of them, decide for it."""


class WorldCollectives:
    """Lightning's collectives of the process group, with errors that name missing ranks.

    Args:
        strategy: whose collectives to call.

    """

    def __init__(self, strategy: DDPStrategy) -> None:
        self._strategy = strategy

    def barrier(self, name: str | None) -> None:
        """Wait for all ranks."""
        with _all_ranks(f"the barrier {name!r}" if name else "a barrier"):
            DDPStrategy.barrier(self._strategy, name)

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of rank ``source``.

        Raises:
            TypeError: on every rank, if JSON can't represent it.

        """
        return broadcast_json(value, source, self._strategy.root_device)

    def reduce(self, tensor: Any, group: Any, operation: Any) -> Any:
        """Combine the tensors of all ranks, or of ``group``."""
        with _all_ranks("a reduction over all ranks", group):
            return DDPStrategy.reduce(self._strategy, tensor, group, operation)

    def all_gather(self, tensor: Tensor, group: Any, sync_grads: bool) -> Tensor:
        """Stack the tensors of all ranks, or of ``group``."""
        with _all_ranks("a gather from all ranks", group):
            return DDPStrategy.all_gather(self._strategy, tensor, group, sync_grads)

    def decide(self, decision: bool, all_agree: bool) -> bool:
        """Return whether all ranks, or any of them, decide for it."""
        return DDPStrategy.reduce_boolean_decision(self._strategy, decision, all_agree)


class LiveRankCollectives:
    """Collectives of the ranks that parameter servers have not lost. ``group`` is ignored.

    Args:
        live: exchanges messages with these ranks.

    """

    def __init__(self, live: LiveCollectives) -> None:
        self._live = live

    def barrier(self, name: str | None) -> None:
        """Wait for the other ranks, unless one of them saves: it asks the servers by itself."""
        if name != "Trainer.save_checkpoint":
            self._live.barrier()

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of rank ``source``, or of the lowest rank if that one is lost."""
        return opened(self._live.broadcast(sealed(value), source), source)

    def reduce(self, tensor: Any, group: Any, operation: Any) -> Any:
        """Combine the tensors of the ranks, in place; other values are returned as they are."""
        if not isinstance(tensor, Tensor):
            return tensor
        return tensor.copy_(self._live.reduce(tensor, operation))

    def all_gather(self, tensor: Tensor, group: Any, sync_grads: bool) -> Tensor:
        """Stack the tensors of the ranks."""
        return torch.stack(self._live.gather(tensor))

    def decide(self, decision: bool, all_agree: bool) -> bool:
        """Return whether all of the ranks, or any of them, decide for it."""
        return self._live.decide(decision, all_agree=all_agree)


def naming_missing_of_ddp(model: object) -> AbstractContextManager[None]:
    """Name the missing ranks of its group if DDP's own communication fails."""
    if not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return progress_record().explaining(dist.get_process_group_ranks(model.process_group))


def _all_ranks(place: str, group: Any = None) -> AbstractContextManager[None]:
    """Name the missing ranks if a collective of ``group`` fails; None is the default group."""
    if not dist.is_initialized():
        return nullcontext()
    if group in (None, dist.group.WORLD):
        return progress_record().at(place)
    return progress_record().explaining(dist.get_process_group_ranks(group))


def naming_missing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Name the missing ranks if a collective of the user's hooks or metrics fails."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if not dist.is_initialized():
            raise
        with progress_record().explaining(range(dist.get_world_size())):
            raise error
