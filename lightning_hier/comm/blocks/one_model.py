"""What is checked and made equal while all ranks train one model: no blocks have begun."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.health_report import SyncPoint
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators


class OneModel:
    """Parameters are equal on all ranks then; buffers, and state of optimizers, need not be.

    All methods are collectives of the world: every rank must call them at the same step. The roll
    call must have been told where this rank is.
    """

    def __init__(
        self,
        module: Module,
        trained: TrainedTensors,
        health: HealthExchange,
        communicators: Communicators,
    ) -> None:
        """Of ``module``, of which ``trained`` is trained; ``health`` judges."""
        self._module = module
        self._buffers = trained.buffers
        self._trained = trained
        self._health = health
        self._communicators = communicators

    def check(self, place: SyncPoint, optimizer: int = -1, carried: Sequence[Tensor] = ()) -> None:
        """Agree that all ranks are in step and the model is finite.

        Buffers and ``carried`` count on rank 0 alone, whose they become.
        """
        first = self._communicators.world.position == 0
        reading = self._trained.reading(averaged=first, carried=carried if first else ())
        self._health.check(place, optimizer, reading)

    def unite_buffers_(self, place: SyncPoint) -> None:
        """Check the model, and give all ranks the buffers of rank 0, in place."""
        self.check(place)
        broadcast_tensors_(self._buffers.tensors, self._communicators.world, "buffers")

    def unite_(self, carried: Sequence[Tensor]) -> None:
        """Make models and ``carried`` state equal to the last bit, in place."""
        self.check(SyncPoint.CHECK, carried=carried)
        everything = [*self._module.parameters(), *self._buffers.tensors, *carried]
        broadcast_tensors_(everything, self._communicators.world, "initial_model")
