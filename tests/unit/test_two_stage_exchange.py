"""A node's side of the exchange with the master, whose messages the tests create."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.two_stage.node import Exchange
from lightning_hier.parameter_server.two_stage.replica import Replica, Shape, file_size
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.two_stage.shared_memory import create_file, remove_file
from tests.unit.lone_channel import LoneChannel

NUMEL = 4
RANKS = (2, 3)
LIMIT_S = 40.0


class Bench:
    """The exchange of a node with two devices, and the messages that it sends."""

    def __init__(self, **settings: Any) -> None:
        shape = Shape(2, NUMEL, torch.float32)
        path = create_file(file_size(2, shape))
        self.replica = Replica(path, devices=2, shape=shape)
        remove_file(path)
        self.sent: list[Message] = []
        self.takes = True
        settings = {"push_period": 3, "timeout_s": LIMIT_S} | settings
        self.channel = LoneChannel(self._send)
        self.exchange = Exchange(
            0,
            self.channel,
            self.replica,
            TwoStageSettings(**settings),
            [{"lr": 0.5}],
        )

    def _send(self, rank: int, message: Message) -> bool:
        if self.takes:
            self.sent.append(message)
        return self.takes

    def add(self, device: int, value: float, present: tuple[int, int] = (1, 1)) -> None:
        marks = torch.tensor(present, dtype=torch.uint8)
        assert self.replica.accumulators[device].add(torch.full((NUMEL,), value), marks, 1.0)
        self.replica.devices[device].steps += 1

    def advance(self, now: float = 0.0) -> list[Message]:
        """Messages that are sent at this time."""
        self.sent.clear()
        self.exchange.advance(now)
        self.channel.tick()
        return list(self.sent)

    def answer(self, kind: Kind, value: float, now: float = 0.0) -> None:
        weights = torch.full((NUMEL,), value)
        self.exchange.handle(Message(kind, 0, 7, {}, weights), now)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.replica.close()


def value_of(payload: Tensor) -> float:
    assert len(payload.unique()) == 1
    return float(payload[0])


def test_push_lists_the_parameters_without_a_gradient_on_any_device(bench: Bench) -> None:
    for absent, marks in (([0], (0, 1)), ([], (1, 0)), ([1], (1, 0))):
        bench.add(0, 1.0, marks)
        bench.add(1, 1.0, (0, 1) if not absent else marks)
        bench.add(1, 1.0, marks)
        [push] = bench.advance()
        assert push.facts["absent"] == absent
        bench.answer(Kind.BLOCK, 0.5)


def test_sum_that_overflows_is_dropped_and_training_continues(bench: Bench) -> None:
    for _ in range(3):
        bench.add(0, 3e38)
    assert bench.advance() == []
    assert bench.exchange.counts.overflowed == 3 and not bench.replica.exchanging
    for _ in range(3):
        bench.add(0, 1.0)
    assert [value_of(push.payload) for push in bench.advance()] == [3.0]


def test_warm_up_pushes_once_all_devices_have_made_the_step() -> None:
    bench = Bench(warmup_steps=2)
    bench.add(0, 1.0)
    assert bench.advance() == []
    bench.replica.devices[1].steps += 1  # its gradient was not finite
    [push] = bench.advance()
    assert push.facts["together"] is True and push.facts["count"] == 1
    bench.answer(Kind.BLOCK, 0.5)
    for device in (0, 1):
        bench.replica.devices[device].steps += 1
    [push] = bench.advance()
    assert push.payload.numel() == 0 and push.facts["count"] == 0
    bench.answer(Kind.BLOCK, 0.5)
    for value in (1.0, 2.0):
        bench.add(0, value)
    assert bench.advance() == []  # the warm-up is over: a push has three gradients
    bench.add(1, 4.0)
    [push] = bench.advance()
    assert push.facts["together"] is False and value_of(push.payload) == 7.0


def test_master_that_does_not_answer_in_time_is_named(bench: Bench) -> None:
    for _ in range(3):
        bench.add(0, 1.0)
    assert len(bench.advance(1.0)) == 1 and bench.advance(1.0 + 2 * LIMIT_S) == []
    with pytest.raises(PeerError, match="rank 0, the master .*, has not answered for 80 s"):
        bench.advance(1.1 + 2 * LIMIT_S)
