"""Worker side of PSP-SGD (Algorithm 1): it goes on with some of the shards."""

from __future__ import annotations

import torch
from torch import optim
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.worker import PSPWorker
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import plan_shards
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

    def final(self, number: int, timestamp: int, value: float) -> None:
        self.hear(number, Message(Kind.FINAL, number, timestamp, {}, torch.full((2,), value)))

    def hear(self, sender: int, message: Message) -> None:
        self.channel.receive(Received(sender, b"", message), self.now)

    def said(self) -> list[Sent]:
        return [(rank, m.kind, m.block, m.timestamp) for rank, m in self.sent]

    def values(self) -> list[float]:
        return [float(one.detach()[0]) for one in self.own]

    def _send(self, rank: int, message: Message) -> bool:
        self.sent.append((rank, message))
        return True


def test_worker_continues_with_some_shards_and_the_others_keep_their_values() -> None:
    h = Harness(b=0.5)
    h.push()
    assert not h.block(3, 1, 4.0)
    assert h.block(0, 1, 1.0)
    h.worker.pull()
    assert h.values() == [1.0, 0.0, 0.0, 4.0]


def test_tau_2_starts_with_the_last_shard_that_is_needed() -> None:
    h = Harness(b=0.5, tau=0.5)
    h.push()
    h.block(0, 1)
    h.now = 3.0
    assert not h.block(1, 1)
    h.now = 3.4
    assert not h.block(2, 1)
    assert not h.worker.is_pulled(3.49)
    assert h.worker.is_pulled(3.5)
    assert h.block(3, 1)


def test_late_shard_does_not_count_and_is_written_at_the_next_pull() -> None:
    h = Harness(b=0.5)
    h.push()
    h.block(0, 1, 1.0)
    h.block(1, 1, 1.0)
    h.worker.pull()
    h.push()
    assert not h.block(2, 1, 5.0)  # an answer of the previous round
    assert h.worker.late == 1
    assert not h.block(0, 2, 2.0)
    assert h.block(1, 2, 2.0)
    h.worker.pull()
    assert h.values() == [2.0, 2.0, 5.0, 0.0]
