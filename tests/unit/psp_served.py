"""A single served shard for tests, without threads and sockets, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import ServerCounts
from lightning_hier.parameter_server.psp.server import ServedShard
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.rendezvous import WaitingRanks
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.updater import Updater, hyperparameters
from tests.unit.lone_channel import Replying


class Served:
    """A shard of two parameters with 3 and 2 elements, which are zero at the start.

    Args:
        workers: number of ranks.
        c: ``min_pushes`` of the settings.
        tau: ``push_timeout_s`` of the settings.
        make: creates the optimizer, by default SGD with a learning rate of 1.
        dtype: dtype of the parameters.
        **settings: further settings.

    Attributes:
        full: workers whose queue is full.

    """

    def __init__(
        self,
        workers: int = 3,
        *,
        c: Any = "all",
        tau: float = 0.0,
        make: Callable[[Sequence[Parameter]], Optimizer] = lambda own: optim.SGD(own, lr=1.0),
        dtype: torch.dtype = torch.float64,
        **settings: Any,
    ) -> None:
        own = [Parameter(torch.zeros(3, dtype=dtype)), Parameter(torch.zeros(2, dtype=dtype))]
        self.optimizer = make(own)
        self.sent: list[tuple[int, Message]] = []
        self.full: set[int] = set()
        self.counts = ServerCounts()
        (shard,) = plan_shards([self.optimizer], 1)
        tensors = [parameter.detach().clone() for parameter in own]
        updater = Updater(self.optimizer, dict(zip(own, tensors, strict=True)))
        self.replies = Replying(self._send)
        self.waiting_ranks = WaitingRanks()
        self.shard = ServedShard(
            replace(shard, world_size=workers),
            ServedValues("shard 0", tensors, updater, shard.dtype),
            settings=PSPSettings(min_pushes=c, push_timeout_s=tau, **settings),
            waiting_ranks=self.waiting_ranks,
            replies=self.replies,
            counts=self.counts,
        )

    @property
    def t(self) -> int:
        """Version of the shard."""
        return self.shard.timestamp

    @property
    def values(self) -> Tensor:
        """The five elements."""
        return self.shard.values.flat()

    def push(
        self,
        worker: int,
        timestamp: int,
        gradient: float | Tensor = -1.0,
        *,
        now: float = 0.0,
        lr: float | None = None,
        **facts: Any,
    ) -> list[tuple[int, int]]:
        """Push. Return the worker and the version of each answer."""
        groups = hyperparameters(self.optimizer)
        if lr is not None:
            groups[0]["lr"] = lr
        defaults = {"version": timestamp, "steps": timestamp, "hyperparameters": groups}
        flat = gradient if isinstance(gradient, Tensor) else self.values.new_full((5,), gradient)
        message = Message(Kind.PUSH, 0, timestamp, {"absent": [], **defaults, **facts}, flat)
        return self.hear(self.shard.respond, worker, message, now)

    def abstain(self, worker: int, timestamp: int, now: float = 0.0) -> list[tuple[int, int]]:
        """Abstain. Return the worker and the version of each answer."""
        message = Message(Kind.ABSTAIN, 0, timestamp)
        return self.hear(self.shard.respond, worker, message, now)

    def arrive(self, worker: int, timestamp: int, now: float = 0.0) -> list[tuple[int, int]]:
        """Arrive at a rendezvous. Return the worker and the version of each answer."""
        message = Message(Kind.ARRIVE, 0, timestamp)
        return self.hear(self.shard.arrive, worker, message, now)

    def tick(self, now: float) -> list[tuple[int, int]]:
        """Call ``tick`` of the shard. Return the worker and the version of each answer."""
        self.sent.clear()
        self.shard.tick(now)
        return self._answers()

    def hear(
        self, method: Callable[[Received, float], None], worker: int, message: Message, now: float
    ) -> list[tuple[int, int]]:
        """Pass a message to the shard. Return the worker and the version of each answer."""
        self.sent.clear()
        received = Received(worker, bytes([worker]), message)
        self.waiting_ranks.note(received)
        method(received, now)
        return self._answers()

    def _send(self, address: bytes, message: Message) -> bool:
        if address[0] in self.full:
            return False
        self.sent.append((address[0], message))
        return True

    def _answers(self) -> list[tuple[int, int]]:
        return [(worker, message.timestamp) for worker, message in self.sent]
