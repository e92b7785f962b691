"""The order in which a master takes the nodes' pushes: that of their first ones, from then on.

Order-locking (two_stage_asgd 3.1) bounds staleness: between two pushes of a node, every other node
pushes once. A node that has finished its epoch is passed over until all have finished; one whose
ranks wait in a meeting, as long as they do; one that has died, for good.
"""

from __future__ import annotations

from collections.abc import Iterable


class OrderLock:
    """Whose turn it is. It knows no time and sends nothing.

    Args:
        nodes: all nodes, named by numbers.

    """

    def __init__(self, nodes: Iterable[int]) -> None:
        self._active = set(nodes)
        self._waiting_nodes: set[int] = set()
        self._order: list[int] = []
        self._turn = 0

    @property
    def order(self) -> list[int]:
        """The nodes in the order of their first pushes, as far as there have been any."""
        return list(self._order)

    @property
    def active(self) -> set[int]:
        """The nodes that may still push."""
        return set(self._active)

    def may_push(self, node: int) -> bool:
        """Whether a push of ``node`` is to be taken now.

        A first push always is. A second one waits until all active nodes have had their first,
        so that the order is complete; from then on it is each node's turn once a round.
        """
        return node in self.waited_for()

    def waited_for(self) -> list[int]:
        """The nodes of which one has to push next; empty if none is active and not waiting."""
        awaited = self._active - self._waiting_nodes
        newcomers = sorted(awaited - set(self._order))
        if newcomers:
            return newcomers
        places = range(self._turn, self._turn + len(self._order))
        cycle = (self._order[place % len(self._order)] for place in places)
        return next(([node] for node in cycle if node in awaited), [])

    def pushed(self, node: int) -> None:
        """Note that a push of ``node`` has been taken.

        Raises:
            ValueError: it was not its turn.

        """
        if not self.may_push(node):
            raise ValueError(f"node {node} pushed, but it is the turn of {self.waited_for()}")
        if node in self._order:
            self._turn = (self._order.index(node) + 1) % len(self._order)
        else:
            self._order.append(node)

    def pass_over(self, waiting: Iterable[int]) -> None:
        """Wait for the nodes that are ``waiting`` no more, and for those that were for again."""
        self._waiting_nodes = set(waiting)

    def leave(self, node: int) -> None:
        """Pass ``node`` over: it has finished its epoch, or has died."""
        self._active.discard(node)

    def reopen(self, nodes: Iterable[int]) -> None:
        """Begin another epoch with ``nodes``, in the same order, from the first one on."""
        self._active = set(nodes)
        self._turn = 0
