"""Pushes of nodes, their counts, and the order in which the master applies them.

Order-locking (two_stage_asgd 3.1) keeps the order of the nodes' first pushes, which bounds
staleness: between two pushes of a node, every other node pushes once. A node is skipped from the
end of its epoch until all nodes have ended it, and while its ranks wait in a collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.updater import Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Push:
    """A push of a node: the sum of its gradients.

    Attributes:
        address: address of the node.
        timestamp: version of the master's model with which the first gradient was computed.
        total: the sum, 1-D; empty if ``count`` is 0.
        due: time limit of the wait for its turn.
        count: number of gradients in the sum; 0 if none was finite.
        together: whether it belongs to a step of the warm-up, which all nodes make together.
        collectives_done: number of the last collective that has ended for the node.
        hyperparameters: hyperparameters of the node's optimizer.
        absent: positions of the parameters without a gradient in the sum.

    """

    address: bytes
    timestamp: int
    total: Tensor
    due: float
    count: int
    together: bool
    collectives_done: int
    hyperparameters: Hyperparameters
    absent: Sequence[int]

    @classmethod
    def read(cls, received: Received, *, due: float) -> Push:
        """A received push. The other fields are the facts of its message."""
        message = received.message
        return cls(
            address=received.address,
            timestamp=message.timestamp,
            total=message.payload,
            due=due,
            **message.facts,
        )


@dataclass
class MasterCounts:
    """Numbers of updates, of applied and dropped pushes, and staleness.

    ``nonfinite`` includes pushes whose update was undone because of NaN or inf.
    """

    version: int = 0
    pushes: int = 0
    nonfinite: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0


class OrderLock:
    """Decides which node pushes next. It has no clock and sends nothing.

    Args:
        nodes: first ranks of all nodes.

    Attributes:
        active: nodes that may push in this epoch.
        order: nodes that have pushed, in the order of their first pushes.

    """

    def __init__(self, nodes: Iterable[int]) -> None:
        self.active = set(nodes)
        self.order: list[int] = []
        self._skipped: set[int] = set()
        self._turn = 0

    def may_push(self, node: int) -> bool:
        """Whether to apply a push of ``node`` now.

        The first push of a node is applied immediately. The second one waits for the first pushes
        of all active nodes, so that the order is complete. Then each node has one turn in a round.
        """
        return node in self.waited_for()

    def waited_for(self) -> list[int]:
        """Nodes of which one must push next. Empty if all are inactive or skipped."""
        awaited = self.active - self._skipped
        newcomers = sorted(awaited - set(self.order))
        if newcomers:
            return newcomers
        # The node whose turn it is, or the next one that is not skipped.
        cycle = self.order[self._turn :] + self.order[: self._turn]
        return next(([node] for node in cycle if node in awaited), [])

    def pushed(self, node: int) -> None:
        """Record that a push of ``node`` has been applied, whose turn it was."""
        # A newcomer does not move the turn of the nodes that are in the order already.
        if node in self.order:
            self._turn = (self.order.index(node) + 1) % len(self.order)
        else:
            self.order.append(node)

    def skip(self, nodes: Iterable[int]) -> None:
        """Replace the set of skipped nodes."""
        self._skipped = set(nodes)

    def leave(self, node: int) -> None:
        """Remove a node that has ended this epoch."""
        # Its place in the order stays, for the next epoch.
        self.active.discard(node)

    def reopen(self, nodes: Iterable[int]) -> None:
        """Start the next epoch with ``nodes``, in the same order, from the first node."""
        self.active = set(nodes)
        self._turn = 0
