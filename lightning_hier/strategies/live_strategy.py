"""Collectives of a strategy that leave out the ranks that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hier.comm.agreement import opened, sealed
from lightning_hier.strategies.tiered import TieredStrategy

if TYPE_CHECKING:
    from lightning_hier.strategies.server_session import ServerSession


class LiveStrategy(TieredStrategy):
    """A strategy that asks its session instead of the process group once that serves.

    What Lightning broadcasts must be something that JSON can say: nothing is unpickled.
    """

    _session: ServerSession | None = None

    @property
    def _live(self) -> ServerSession | None:
        """The session once it serves: collectives of the process group are over then."""
        return self._session if self._session is not None and self._session.started else None

    @property
    @override
    def is_global_zero(self) -> bool:
        """Whether this is the lowest rank that is still there: it writes checkpoints."""
        if self._live is None:
            return super().is_global_zero
        return self.global_rank == self._live.living()[0]

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        # Saving stops nobody: only one rank writes, and asks the servers by itself.
        if self._live is None:
            super().barrier(*args, **kwargs)
        elif "Trainer.save_checkpoint" not in args:
            self._live.collectives.barrier()

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self._live is None:
            return super().broadcast(obj, src)
        return opened(self._live.collectives.broadcast(sealed(obj), src), src)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if self._live is None or not isinstance(tensor, Tensor):
            return super().reduce(tensor, group, reduce_op)
        return tensor.copy_(self._live.collectives.reduce(tensor, reduce_op))

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        if self._live is None:
            return super().all_gather(tensor, group, sync_grads)
        return torch.stack(self._live.collectives.gather(tensor))

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        if self._live is None:
            return super().reduce_boolean_decision(decision, all)
        return self._live.collectives.decide(decision, all_agree=all)
