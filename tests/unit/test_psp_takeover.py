"""A rank takes over the shard of one that is gone: from which values, when, and what it answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import plan_shards
from tests.unit.replying import Replying

SIZE = 4


class Server:
    """Rank 1 of 4; block 0 is served by rank 0."""

    def __init__(self, rank: int = 1, c: Any = 1) -> None:
        own = [Parameter(torch.zeros(SIZE, dtype=torch.float64)) for _ in range(4)]
        optimizer = optim.SGD(own, lr=1.0, momentum=0.9)
        self.sent: list[tuple[int, Message]] = []
        settings = [PSPSettings(min_pushes=c)]
        plan, replies = plan_shards([optimizer], 4), Replying(self._send)
        self.handler = ShardServer(rank, plan, [optimizer], settings, replies)

    def hear(
        self,
        worker: int,
        kind: Kind,
        timestamp: int,
        value: float | None = None,
        *,
        now: float = 0.0,
        block: int = 0,
        **facts: Any,
    ) -> list[tuple[int, Kind, int]]:
        size, value = (0, 0.0) if value is None else (SIZE, value)
        payload = torch.full((size,), value, dtype=torch.float64)
        message = Message(kind, block, timestamp, facts, payload)
        self.sent.clear()
        self.handler.handle(Received(worker, bytes([worker]), message), now)
        return self.answers()

    def push(self, worker: int, timestamp: int, now: float = 0.0) -> list[tuple[int, Kind, int]]:
        facts = {"version": timestamp, "final": 0, "steps": 0, "absent": []}
        return self.hear(
            worker, Kind.PUSH, timestamp, -1.0, now=now, **facts, hyperparameters=[{"lr": 1.0}]
        )

    def hold(
        self, worker: int, timestamp: int, value: float, *, final: int = 0, now: float = 0.0
    ) -> list[tuple[int, Kind, int]]:
        return self.hear(worker, Kind.HOLD, timestamp, value, now=now, final=final)

    def gone(self, rank: int, now: float = 0.0) -> list[tuple[int, Kind, int]]:
        self.sent.clear()
        self.handler.peer_gone(rank, now)
        return self.answers()

    def answers(self) -> list[tuple[int, Kind, int]]:
        return [(worker, message.kind, message.timestamp) for worker, message in self.sent]

    @property
    def values(self) -> Tensor:
        return self.handler.served[0].values.flat()

    def _send(self, address: bytes, message: Message) -> bool:
        self.sent.append((address[0], message))
        return True


def test_starts_from_the_newest_copy_when_all_have_told() -> None:
    server = Server()
    server.gone(0)
    server.hold(1, 5, 1.0)
    server.hold(2, 7, 2.0)
    assert 0 not in server.handler.served
    server.hold(3, 6, 3.0)
    assert server.handler.served[0].timestamp == 7
    assert torch.equal(server.values, torch.full((SIZE,), 2.0, dtype=torch.float64))
    assert server.handler.served[0].values.snapshot()[1] == {}
    assert server.handler.counts.takeovers == 1


def test_what_comes_before_the_start_is_repeated_without_its_gradient() -> None:
    server = Server(c=2)
    server.gone(0)
    server.hold(1, 5, 1.0)
    assert server.push(1, 5) == []
    server.hold(2, 6, 2.0)
    server.hold(3, 5, 1.0)
    assert server.handler.counts.dropped == 1
    assert server.hear(1, Kind.ABSTAIN, 5, final=0) == [(1, Kind.BLOCK, 6)]
    server.push(1, 6)
    server.push(2, 6)
    assert server.push(3, 6) == [(3, Kind.BLOCK, 7)]
    assert torch.equal(server.values, torch.full((SIZE,), 4.0, dtype=torch.float64))


def test_takeover_in_the_middle_of_a_rendezvous() -> None:
    """Worker 1 has the values that ended it, workers 2 and 3 have not."""
    server = Server()
    server.hold(2, 5, 1.0)
    server.gone(0)
    server.hold(3, 5, 1.0)
    server.hold(1, 6, 2.0, final=1)
    # It goes on before the others have asked, which must not free the answer that they need.
    assert server.hear(1, Kind.ABSTAIN, 6, final=1) == []
    for worker in (2, 3):
        assert server.hear(worker, Kind.ARRIVE, 5, number=1) == [(worker, Kind.FINAL, 6)]


def test_copy_that_is_not_finite_is_refused() -> None:
    server = Server()
    server.gone(0)
    server.hold(2, 7, float("nan"))
    server.handler.tick(1000.0)
    assert 0 not in server.handler.served
