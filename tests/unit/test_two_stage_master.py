"""Answers of the two-stage ASGD master to single messages of nodes, and its order lock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server import WaitingRanks
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.shards import plan_shards
from lightning_hier.parameter_server.two_stage.master import Master, OrderLock
from lightning_hier.parameter_server.updater import hyperparameters
from tests.unit.lone_channel import Replying

ETA = 0.25


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(3, dtype=torch.float64))


def ones(value: float) -> Tensor:
    return torch.full((3,), value, dtype=torch.float64)


class Talk:
    """A master, and the pushes of nodes that it answers."""

    def __init__(self, nodes: tuple[int, ...], optimizer: Optimizer, **settings: Any) -> None:
        self.optimizer, self.answers = optimizer, list[Message]()
        [shard] = plan_shards([optimizer], 1)
        ranks = {node: range(node, node + 2) for node in nodes}
        self.master = Master(
            shard,
            optimizer,
            ranks,
            settings=TwoStageSettings(**settings),
            waiting_ranks=WaitingRanks(),
            replies=Replying(self._answer),
        )
        self.model, self.counts = self.master.values, self.master.counts

    def _answer(self, address: bytes, message: Message) -> bool:
        self.answers.append(message)
        return True

    def push(self, node: int, total: Tensor, count: int, **facts: Any) -> list[Message]:
        """Handle a push of a node, and return the answers."""
        self.answers.clear()
        common = {"hyperparameters": hyperparameters(self.optimizer), "absent": []}
        defaults = common | {"count": count, "together": False, "collectives_done": 0}
        message = Message(Kind.PUSH, 0, self.counts.version, defaults | facts, total)
        self.master.push(Received(node, str(node).encode(), message), 0.0)
        return list(self.answers)


def test_without_hierarchical_rate_gamma_is_eta() -> None:
    talk = Talk((0,), SGD([parameter()], lr=ETA), hierarchical_lr=False)
    [answer] = talk.push(0, ones(3.0), 4)
    torch.testing.assert_close(answer.payload, -ETA * ones(3.0), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Adam, {"eps": 0.0}),  # 0 / 0 where a gradient has always been zero
        (SGD, {"lr": 1e300}),  # finite gradient, finite rate, and a product that is not
        (SGD, {"lr": float("nan")}),  # for example from a schedule
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_nonfinite_update_is_undone(
    kind: type[SGD | Adam], bad: dict[str, float], together: bool
) -> None:
    talk = Talk((0,), kind([parameter()], lr=ETA))
    group = talk.optimizer.param_groups[0]
    good = {name: group[name] for name in bad}
    group.update(bad)
    total = torch.tensor([0.0, 1e30, 1.0], dtype=torch.float64)
    [answer] = talk.push(0, total, 1, together=together)
    assert answer.payload.tolist() == [0.0] * 3
    assert (talk.counts.version, talk.counts.nonfinite, talk.counts.pushes) == (0, 1, 0)
    assert not talk.model.snapshot()[1]  # the optimizer's state is undone as well
    group.update(good)
    [answer] = talk.push(0, ones(1.0), 1)
    torch.testing.assert_close(answer.payload, -ETA * ones(1.0), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("together", [False, True])
def test_parameter_without_a_gradient_does_not_change(together: bool) -> None:
    """Neither weight decay nor momentum changes it."""
    pair = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    talk = Talk((0, 2), SGD(pair, lr=0.5, momentum=0.9, weight_decay=0.1))

    def pushed(*absent: list[int]) -> torch.Tensor:
        for node, own in zip((0, 2), absent, strict=True):
            total = torch.ones(4)
            total[2:] = float(own != [1])
            talk.push(node, total, 1, together=together, absent=own)
        return talk.model.flat()

    before = pushed([], [])
    after = pushed([1], [1])
    assert torch.equal(after[2:], before[2:]) and bool((after[:2] < before[:2]).all())
    # It changes if one of the nodes has a gradient, also in a common step.
    assert bool((pushed([1], [])[2:] < after[2:]).all())


@given(st.data(), st.integers(1, 5), st.integers(1, 30))
def test_every_node_pushes_once_between_two_pushes_of_another(
    data: st.DataObject, nodes: int, length: int
) -> None:
    """This bounds the staleness by the number of nodes minus one, while both nodes take part."""
    lock = OrderLock(range(nodes))
    pushes: list[int] = []
    left: set[int] = set()
    for _ in range(length):
        able = lock.waited_for()
        if not able:
            break
        node = data.draw(st.sampled_from(able))
        lock.pushed(node)
        pushes.append(node)
        if len(left) < nodes - 1 and data.draw(st.integers(0, 9)) == 0:
            leaver = data.draw(st.sampled_from(sorted(set(range(nodes)) - left)))
            lock.leave(leaver)
            left.add(leaver)
    stayed = set(range(nodes)) - left
    for node in stayed:
        times = [time for time, pushed in enumerate(pushes) if pushed == node]
        for earlier, later in pairwise(times):
            between = pushes[earlier + 1 : later]
            assert stayed - {node} <= set(between)
            assert len(set(between)) == len(between)
