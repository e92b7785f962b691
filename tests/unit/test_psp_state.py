"""The rank that saves a checkpoint collects the state of all PSP servers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.state import StateCollector
from tests.unit.lone_channel import LoneChannel
from tests.unit.optimizer_cases import gradients, parameters
from tests.unit.replying import Replying

RANKS = 3


class Job:
    """Three ranks that each serve a shard of every optimizer. Rank 0 requests their state.

    The queue of a server has room for ``room`` answers that have not been collected.
    """

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.blocks = plan_shards(optimizers, RANKS)
        self.answers: list[Received] = []
        self.asked: list[tuple[int, int]] = []
        self.silent: set[int] = set()
        self.room = 1000
        settings = [PSPSettings()] * len(optimizers)
        self.replies = [Replying(self._reply(rank)) for rank in range(RANKS)]
        self.servers = [
            ShardServer(rank, self.blocks, optimizers, settings, replies)
            for rank, replies in enumerate(self.replies)
        ]
        self.channel = LoneChannel(self._ask)
        self.collector = StateCollector(self.blocks, self.channel)

    def collect(self) -> None:
        while self.answers:
            self.collector.handle(self.answers.pop(0), 0.0)

    def tick(self, now: float) -> None:
        for rank, server in enumerate(self.servers):
            server.tick(now)
            queued = any(answer.sender == rank for answer in self.answers)
            self.replies[rank].sending = {b"0"} if queued else set()
        self.channel.tick(now)

    def push(self, optimizer: int, values: list[Tensor]) -> None:
        for block in self.blocks:
            if block.optimizer == optimizer and block.size:
                flat = torch.cat([values[index].reshape(-1) for index in block.indices])
                facts = {"version": 0, "final": 0, "steps": 0}
                message = Message(Kind.PUSH, block.number, 0, facts, flat)
                for worker in range(RANKS):
                    self.servers[block.home].handle(Received(worker, b"0", message), 0.0)

    def _ask(self, rank: int, message: Message) -> bool:
        self.asked.append((rank, message.block))
        if rank not in self.silent:
            self.servers[rank].handle(Received(0, b"0", message), 0.0)
        return True

    def _reply(self, rank: int) -> Any:
        def send(address: bytes, message: Message) -> bool:
            if message.kind == Kind.STATE:
                if sum(answer.sender == rank for answer in self.answers) >= self.room:
                    return False
                self.answers.append(Received(rank, b"", message))
            return True

        return send


def test_state_is_copied_when_it_is_requested() -> None:
    own = parameters()
    job = Job([optim.Adam(own)])
    job.collector.request()
    job.push(0, gradients(0))
    job.collect()
    assert all(torch.equal(job.collector.snapshot(1).values[one], one) for one in own)
    assert job.collector.snapshot(1).optimizer_states == [{}]


def test_state_that_a_full_queue_refuses_is_requested_again() -> None:
    own = parameters()
    job = Job([optim.Adam(own)])
    job.push(0, gradients(0))
    job.room = 0
    job.collector.request()
    assert not job.answers
    job.room = 1
    job.tick(5.0)
    assert len(job.answers) == RANKS
    job.collect()
    assert job.collector.is_complete(0.0)
    assert {
        one["exp_avg_sq"].shape for one in job.collector.snapshot(1).optimizer_states[0].values()
    } == {one.shape for one in own}


def test_answers_to_an_earlier_request_are_ignored() -> None:
    own = parameters()
    job = Job([optim.SGD(own, lr=0.1)])
    job.collector.request()
    job.silent = set(range(RANKS))
    job.collector.request()
    job.collect()
    assert not job.collector.is_complete(0.0)
