"""A node's push as the master sees it, and what is wrong with one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.hyperparameters import Hyperparameters
from lightning_hier.parameter_server.message import Message


@dataclass(frozen=True)
class Push:
    """A node's sum.

    Attributes:
        address: where the answer goes.
        number: of the node's pushes, from 1; the answer repeats it.
        version: of the master's model that the node had when it began to add up.
        count: gradients in the sum; 0: none of them was finite.
        together: whether it is part of a step of the warm-up, which all nodes make together.
        hyperparameters: of the node's optimizer.
        absent: positions of the parameters without a gradient in the sum.
        total: the sum, 1-D.
        due: until when it may wait for its turn.

    """

    address: bytes
    number: int
    version: int
    count: int
    together: bool
    hyperparameters: Hyperparameters
    absent: frozenset[int]
    total: Tensor | None
    due: float


def read_push(message: Message, address: bytes, *, due: float) -> Push | None:
    """A push out of its message; None if the message is not one."""
    facts = message.facts
    number, count = facts.get("number"), facts.get("count")
    hyperparameters, absent = facts.get("hyperparameters"), facts.get("absent")
    if type(number) is not int or type(count) is not int or not isinstance(hyperparameters, list):
        return None
    if not isinstance(absent, list) or not all(type(place) is int for place in absent):
        return None
    return Push(
        address=address,
        number=number,
        version=message.timestamp,
        count=count,
        together=facts.get("together") is True,
        hyperparameters=hyperparameters,
        absent=frozenset(absent),
        total=message.payload,
        due=due,
    )
