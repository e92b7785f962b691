"""Steps of a two-stage ASGD device, with its node and the master in the same process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server import WaitingRanks
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.shards import plan_shards
from lightning_hier.parameter_server.two_stage.device import Device
from lightning_hier.parameter_server.two_stage.master import Master
from lightning_hier.parameter_server.two_stage.node import Exchange
from lightning_hier.parameter_server.two_stage.replica import open_replicas
from lightning_hier.parameter_server.updater import hyperparameters
from tests.equivalence.two_stage import FEATURES, START, OneDevice, ReferenceMaster, batch
from tests.unit.lone_channel import LoneChannel, Replying

ETA = 0.1


class FakeClient:
    """A client whose ``wait`` does the work of the other threads."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.collectives_done = 0

    def poll(self, timeout_s: float = 0.0) -> bool:
        return False

    def wait(
        self, done: Callable[[float], bool], missing: Callable[[], str], *, limit_s: float
    ) -> float:
        begun = time.monotonic()
        for _ in range(100):
            if done(0.0):
                return time.monotonic() - begun
            self._meanwhile()
        raise PeerError(missing())


class OneNode:
    """A node with one device. Messages stay queued until :meth:`deliver`."""

    def __init__(self, optimizer: str = "SGD", **settings: Any) -> None:
        self.module = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.module.weight.copy_(START)
        parameters = [self.module.weight]
        self.optimizer = getattr(torch.optim, optimizer)(parameters, lr=ETA)
        chosen = TwoStageSettings(**settings)
        shards = plan_shards([self.optimizer], 1)
        [self.replica] = open_replicas(shards, group_size=1, rank=0, exchange=lambda v: [v])
        self.to_master: deque[Message] = deque()
        self.to_node: deque[Message] = deque()
        self.master = Master(
            shards[0],
            self.optimizer,
            {0: [0]},
            settings=chosen,
            waiting_ranks=WaitingRanks(),
            replies=Replying(self._answer),
        )
        self.exchange = Exchange(
            0,
            LoneChannel(self._ask),
            self.replica,
            chosen,
            hyperparameters(self.optimizer),
        )
        self.client = FakeClient(self.carry)
        self.device = Device(0, [0], self.client, self.replica, self.optimizer, chosen)
        self.steps = 0

    def _ask(self, rank: int, message: Message) -> bool:
        self.to_master.append(message)
        return True

    def _answer(self, address: bytes, message: Message) -> bool:
        self.to_node.append(message)
        return True

    def push_if_due(self) -> None:
        self.exchange.advance(0.0)

    def carry(self) -> None:
        """Push if a push is due, and deliver all messages."""
        self.push_if_due()
        self.deliver()

    def deliver(self) -> None:
        """Deliver the queued messages to the master and to the node until none is left."""
        while self.to_master or self.to_node:
            if self.to_master:
                self.master.push(Received(0, b"", self.to_master.popleft()), 0.0)
            if self.to_node:
                self.exchange.handle(self.to_node.popleft(), 0.0)

    def step(self) -> None:
        inputs, targets = batch(0, self.steps)
        self.optimizer.zero_grad()
        (0.5 * (self.module(inputs).squeeze(1) - targets).square().mean()).backward()
        self.device.step()
        self.steps += 1

    @property
    def weights(self) -> Tensor:
        return self.module.weight.detach().reshape(-1)


@pytest.mark.parametrize(("name", "delay"), [("SGD", 0), ("SGD", 7), ("Adam", 1)])
def test_double_buffering_against_the_reference(name: str, delay: int) -> None:
    """The answer arrives ``delay`` mini-batches after the push. The device continues meanwhile.

    The gradients of this time are part of the next push, which has up to 7 of them here.
    """
    ours = OneNode(name, push_period=3)
    make = partial(getattr(torch.optim, name), lr=ETA)
    master, node = ReferenceMaster(make), OneDevice(make)
    answer, due = None, 0
    for step in range(25):
        ours.step()
        node.step()
        torch.testing.assert_close(ours.weights, node.copy, rtol=1e-12, atol=1e-12)
        if answer is None and node.node.n >= 3:
            ours.push_if_due()
            answer, due = node.push(master), step + delay
        if answer is not None and step >= due:
            ours.deliver()
            node.pull(answer)
            answer = None
        torch.testing.assert_close(ours.replica.weights, node.weights, rtol=1e-12, atol=1e-12)
    ours.deliver()
    assert master.pushes == ours.master.counts.version >= 3


def test_refresh_period_is_the_number_of_steps_between_copies_of_the_replica() -> None:
    ours = OneNode(push_period=100, refresh_period=3)
    node = OneDevice(partial(torch.optim.SGD, lr=ETA))
    for step in range(7):
        ours.step()
        node.step(refresh=step % 3 == 2)
        torch.testing.assert_close(ours.weights, node.copy, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.replica.weights, node.weights, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_gradient_is_dropped(bad: float) -> None:
    ours = OneNode(push_period=1)
    ours.module.weight.grad = torch.full_like(ours.module.weight, bad)
    ours.device.step()
    assert torch.equal(ours.replica.weights, START) and ours.replica.pending == 0
    assert (ours.device.counts.nonfinite, ours.device.counts.gradients) == (1, 0)
    ours.carry()
    assert ours.master.counts.version == 0


@pytest.mark.parametrize(("setting", "value"), [("lr", 1e300), ("lr", float("nan"))])
def test_nonfinite_update_of_the_replica_is_undone(setting: str, value: float) -> None:
    ours = OneNode(push_period=100)
    ours.step()
    before = ours.replica.weights.clone()
    ours.optimizer.param_groups[0][setting] = value
    ours.module.weight.grad = torch.full_like(ours.module.weight, 1e30)
    ours.device.step()
    assert torch.equal(ours.replica.weights, before) and torch.equal(ours.weights, before)
    assert ours.device.counts.nonfinite == 1
    assert ours.replica.pending == 2  # the gradient itself is finite


def test_device_does_not_change_a_parameter_without_gradient() -> None:
    ours = OneNode(push_period=1)
    ours.optimizer.param_groups[0]["weight_decay"] = 0.5
    ours.module.weight.grad = None
    ours.device.step()
    assert torch.equal(ours.replica.weights, START)


def test_stopped_node_does_not_block_a_device_for_ever() -> None:
    ours = OneNode(timeout_s=0.05)
    with ours.replica.accumulators[0]._lock.locked(1.0):
        with pytest.raises(PeerError, match="the node's lock"):
            ours.step()
