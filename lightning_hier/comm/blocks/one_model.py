"""Checks and equal values while all ranks train one model, before blocks begin or without them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.health import SyncPoint
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.communicators import Communicators


class OneModel:
    """The model of all ranks. Its parameters are equal; buffers and optimizers' state may differ.

    All methods are collectives of the world, inside :meth:`ProgressRecord.at`: every rank must call
    them at the same step.

    Args:
        module: being trained.
        trained: its synchronised tensors.
        health: exchange of health reports.
        communicators: channels of this rank.

    """

    def __init__(
        self,
        module: Module,
        trained: TrainedTensors,
        health: HealthExchange,
        communicators: Communicators,
    ) -> None:
        self._module = module
        self._buffers = trained.buffers
        self._trained = trained
        self._health = health
        self._communicators = communicators

    def check(self, point: SyncPoint, optimizer: int = -1, carried: Sequence[Tensor] = ()) -> None:
        """Check that all ranks are in step and the model is finite.

        Of buffers and ``carried`` only those of rank 0 are checked, since all ranks get them.
        """
        first = self._communicators.world.position == 0
        health = self._trained.health(averaged=first, carried=carried if first else ())
        self._health.check(point, optimizer, health)

    def broadcast_buffers_(self, point: SyncPoint) -> None:
        """Check the model, and give all ranks the buffers of rank 0, in place."""
        self.check(point)
        broadcast_tensors_(self._buffers.tensors, self._communicators.world, "buffers")

    def broadcast_(self, carried: Sequence[Tensor]) -> None:
        """Check the model, and make it and ``carried`` equal to the last bit, in place."""
        self.check(SyncPoint.CHECK, carried=carried)
        everything = [*self._module.parameters(), *self._buffers.tensors, *carried]
        broadcast_tensors_(everything, self._communicators.world, "initial_model")
