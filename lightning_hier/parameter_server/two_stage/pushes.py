"""Pushes of nodes, and the order in which the master applies them.

Order-locking (two_stage_asgd 3.1) keeps the order of the nodes' first pushes, which bounds
staleness: between two pushes of a node, every other node pushes once. A node is skipped from the
end of its epoch until all nodes have ended it, while its ranks wait in a live-rank collective, and
after its death.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.message import Message
from lightning_hier.parameter_server.user_optimizer import Hyperparameters


@dataclass(frozen=True)
class Push:
    """A push of a node: the sum of its gradients.

    Attributes:
        address: address of the node.
        number: number of the push, from 1 for each node. The answer contains it.
        timestamp: version of the master's model with which the first gradient was computed.
        count: number of gradients in the sum; 0 if none was finite.
        together: whether it belongs to a step of the warm-up, which all nodes make together.
        hyperparameters: hyperparameters of the node's optimizer.
        absent: positions of the parameters without a gradient in the sum.
        total: the sum, 1-D; empty if ``count`` is 0.
        due: time limit of the wait for its turn.

    """

    address: bytes
    number: int
    timestamp: int
    count: int
    together: bool
    hyperparameters: Hyperparameters
    absent: frozenset[int]
    total: Tensor
    due: float


def read_push(message: Message, address: bytes, *, due: float) -> Push | None:
    """Read a push; None if the message is malformed."""
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
        timestamp=message.timestamp,
        count=count,
        together=facts.get("together") is True,
        hyperparameters=hyperparameters,
        absent=frozenset(absent),
        total=message.payload,
        due=due,
    )


class OrderLock:
    """Decides which node pushes next. It has no clock and sends nothing.

    Args:
        nodes: first ranks of all nodes.

    """

    def __init__(self, nodes: Iterable[int]) -> None:
        self._active = set(nodes)
        self._skipped: set[int] = set()
        self._order: list[int] = []
        self._turn = 0

    @property
    def order(self) -> list[int]:
        """The nodes that have pushed, in the order of their first pushes."""
        return list(self._order)

    @property
    def active(self) -> set[int]:
        """The nodes that may push in this epoch."""
        return set(self._active)

    def may_push(self, node: int) -> bool:
        """Whether to apply a push of ``node`` now.

        The first push of a node is applied immediately. The second one waits for the first pushes
        of all active nodes, so that the order is complete. Then each node has one turn in a round.
        """
        return node in self.waited_for()

    def waited_for(self) -> list[int]:
        """Nodes of which one must push next. Empty if all are inactive or skipped."""
        awaited = self._active - self._skipped
        newcomers = sorted(awaited - set(self._order))
        if newcomers:
            return newcomers
        # The node whose turn it is, or the next one that is not skipped.
        places = range(self._turn, self._turn + len(self._order))
        cycle = (self._order[place % len(self._order)] for place in places)
        return next(([node] for node in cycle if node in awaited), [])

    def pushed(self, node: int) -> None:
        """Record that a push of ``node`` has been applied.

        Raises:
            ValueError: it is not its turn.

        """
        if not self.may_push(node):
            raise ValueError(f"node {node} pushed, but it is the turn of {self.waited_for()}")
        if node in self._order:
            self._turn = (self._order.index(node) + 1) % len(self._order)
        else:
            self._order.append(node)

    def skip(self, nodes: Iterable[int]) -> None:
        """Replace the set of skipped nodes."""
        self._skipped = set(nodes)

    def leave(self, node: int) -> None:
        """Remove a node that has ended this epoch, or is lost."""
        self._active.discard(node)

    def reopen(self, nodes: Iterable[int]) -> None:
        """Start the next epoch with ``nodes``, in the same order, from the first node."""
        self._active = set(nodes)
        self._turn = 0
