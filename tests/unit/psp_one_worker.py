"""A single PSP worker for tests, without threads and sockets, and the messages that it sends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import optim
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.worker import PSPWorker
from tests.unit.lone_channel import LoneChannel

Sent = tuple[int, Kind, int, int]


class Harness:
    """Worker 0 of ``ranks`` ranks. Each shard has one parameter with two elements."""

    def __init__(self, ranks: int = 4, b: float = 1.0, tau: float = 0.0) -> None:
        self.own = [Parameter(torch.zeros(2)) for _ in range(ranks)]
        self.sent: list[tuple[int, Message]] = []
        self.now = 0.0
        optimizer = optim.SGD(self.own, lr=1.0)
        blocks = plan_shards([optimizer], ranks)
        self.channel = LoneChannel(self._send)
        chosen = PSPSettings(min_pulled=b, pull_timeout_s=tau)
        self.worker = PSPWorker(optimizer, blocks, self.channel, chosen)
        for kind in (Kind.BLOCK, Kind.FINAL):
            self.channel.on(kind, self.worker.handle)

    def push(self, gradient: float = 1.0) -> list[Sent]:
        for parameter in self.own:
            parameter.grad = torch.full_like(parameter, gradient)
        self.sent.clear()
        self.worker.push()
        return self.said()

    def block(self, number: int, timestamp: int, value: float = 0.0) -> bool:
        """Receive a BLOCK message, and return whether the worker may continue."""
        message = Message(Kind.BLOCK, number, timestamp, {}, torch.full((2,), value))
        self.hear(number, message)
        return self.worker.is_pulled(self.now)

    def final(self, number: int, timestamp: int, value: float, *, rendezvous: int = 1) -> None:
        facts = {"number": rendezvous}
        self.hear(number, Message(Kind.FINAL, number, timestamp, facts, torch.full((2,), value)))

    def hear(self, sender: int, message: Message) -> None:
        self.channel.receive(Received(sender, b"", message), self.now)

    def said(self) -> list[Sent]:
        return [(rank, m.kind, m.block, m.timestamp) for rank, m in self.sent]

    def values(self) -> list[float]:
        return [float(one.detach()[0]) for one in self.own]

    def _send(self, rank: int, message: Message) -> bool:
        self.sent.append((rank, message))
        return True


def every(kind: Kind, timestamp: int, ranks: Sequence[int] = range(4)) -> list[Sent]:
    return [(rank, kind, rank, timestamp) for rank in ranks]
