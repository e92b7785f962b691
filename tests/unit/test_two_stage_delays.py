"""Two-stage ASGD over a network that delays messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_hier.parameter_server.message import Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.two_stage.master import Master, master_model
from lightning_hier.parameter_server.two_stage.node import Exchange
from lightning_hier.parameter_server.two_stage.pushes import Push
from lightning_hier.parameter_server.two_stage.replica import Replica, open_replicas
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.updater import hyperparameters
from tests.unit.lone_channel import LoneChannel, Replying

NODES = (0, 1, 2)
HAS_ONE = torch.ones(1, dtype=torch.uint8)
# The timeout is beyond any simulated time.
SETTINGS = TwoStageSettings(push_period=2, timeout_s=1e30)


class Delaying:
    """Three nodes with one device each. Messages are delayed at random."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.to_nodes: list[tuple[int, Message]] = []
        self.to_master: list[tuple[int, Message]] = []
        parameter = nn.Parameter(torch.zeros(len(NODES)))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        self.model = master_model(optimizer, [parameter])
        nodes = {node: [node] for node in NODES}
        self.master = Master([self.model], nodes, Replying(self._answer), SETTINGS)
        self.pushes: list[Push] = []
        self._record()
        self.replicas: list[Replica] = []
        self.exchanges: list[Exchange] = []
        for node in NODES:
            [replica] = open_replicas(
                [[parameter]], group_size=1, rank=0, exchange=lambda value: [value]
            )
            self.replicas.append(replica)
            channel = LoneChannel(self._ask(node))
            self.exchanges.append(
                Exchange(0, channel, replica, SETTINGS, hyperparameters(optimizer))
            )

    def _record(self) -> None:
        """Record all pushes that the master applies."""
        part = self.master.parts[0]
        update = part._update

        def recorded(pushes: Sequence[Push]) -> bool:
            self.pushes += pushes
            return update(pushes)

        part._update = recorded  # type: ignore[method-assign]

    def _ask(self, node: int) -> Callable[[int, Message], bool]:
        return lambda rank, message: self._put(self.to_master, node, message)

    def _answer(self, address: bytes, message: Message) -> bool:
        return self._put(self.to_nodes, int(address), message)

    def _put(self, wire: list[tuple[int, Message]], node: int, message: Message) -> bool:
        wire.append((node, message))
        return True

    def turn(self) -> None:
        """Advance the time, and deliver some of the messages in flight, in any order of nodes."""
        self.now += 1.0
        for exchange in self.exchanges:
            exchange.advance(self.now)
        for wire in (self.to_master, self.to_nodes):
            if wire and self.chance.random() < 0.7:
                node, message = wire.pop(self.chance.randrange(len(wire)))
                if wire is self.to_nodes:
                    self.exchanges[node].handle(message, self.now)
                else:
                    received = Received(node, str(node).encode(), message)
                    self.master.handle(received, self.now)


@given(
    st.integers(0, 2**32), st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 2)
)
def test_every_gradient_counts_once_and_all_end_with_one_model(
    seed: int, steps: list[int], epochs: int
) -> None:
    """The gradient of node n is 1 at place n, so sums are exact."""
    net = Delaying(random.Random(seed))
    for epoch in range(1, epochs + 1):
        for node, number in zip(NODES, steps, strict=True):
            for _ in range(number):
                gradient = torch.zeros(len(NODES))
                gradient[node] = 1.0
                net.replicas[node].accumulators[0].add(gradient, HAS_ONE, 1.0)
            net.replicas[node].devices[0].arrived = epoch
        for _ in range(3000):
            if all(replica.node.finals == epoch for replica in net.replicas):
                break
            net.turn()
        total = sum((push.total for push in net.pushes), torch.zeros(len(NODES)))
        assert total.tolist() == [float(number * epoch) for number in steps]
        assert sum(push.count for push in net.pushes) == sum(steps) * epoch
        for replica in net.replicas:
            assert replica.node.finals == epoch
            assert torch.equal(replica.weights, net.model.flat())
