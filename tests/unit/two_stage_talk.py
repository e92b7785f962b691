"""Helper of tests that exchange single messages with the master of two-stage ASGD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.two_stage.master import Master, master_model
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.updater import hyperparameters
from tests.unit.lone_channel import Replying

ETA = 0.25
LIMIT_S = 10.0


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(3, dtype=torch.float64))


class Talk:
    """A master, and the messages that it exchanges with nodes.

    The default optimizer is SGD of one parameter with three elements, which are zero.
    """

    def __init__(
        self,
        nodes: tuple[int, ...] = (0, 2),
        *,
        optimizer: torch.optim.Optimizer | None = None,
        **settings: Any,
    ) -> None:
        self.optimizer = optimizer or torch.optim.SGD([parameter()], lr=ETA)
        self.model = master_model(self.optimizer, self.optimizer.param_groups[0]["params"])
        self.sent: list[tuple[int, Message]] = []
        settings = {"timeout_s": LIMIT_S} | settings
        ranks = {node: range(node, node + 2) for node in nodes}
        self.replies = Replying(self._send)
        self.master = Master([self.model], ranks, self.replies, TwoStageSettings(**settings))
        self.counts = self.master.parts[0].counts

    def _send(self, address: bytes, message: Message) -> bool:
        self.sent.append((int(address), message))
        return True

    def say(self, node: int, message: Message, now: float = 0.0) -> list[tuple[int, Message]]:
        """Handle a message of a node, and return the messages that the master sends."""
        self.sent.clear()
        self.master.handle(Received(node, str(node).encode(), message), now)
        return list(self.sent)

    def push(
        self, node: int, total: Tensor, count: int, *, now: float = 0.0, **facts: Any
    ) -> list[tuple[int, Message]]:
        common = {"hyperparameters": hyperparameters(self.optimizer), "absent": []}
        defaults = common | {"count": count, "together": False, "collectives_done": 0}
        version = facts.pop("version", self.counts.version)
        return self.say(node, Message(Kind.PUSH, 0, version, defaults | facts, total), now)

    def arrive(self, node: int, now: float = 0.0) -> list[tuple[int, Message]]:
        return self.say(node, Message(Kind.ARRIVE), now)


def ones(value: float) -> Tensor:
    return torch.full((3,), value, dtype=torch.float64)
