"""Master of two-stage ASGD: holds W, applies the pushes of nodes in order, and ends epochs.

Order-locking (two_stage_asgd 3.1) keeps the order of the nodes' first pushes, which bounds
staleness: between two pushes of a node, every other node pushes once. A node is skipped from the
end of its epoch until all nodes have ended it, and while its ranks wait in a collective.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received, ServerPort
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server import ShardServer, WaitingRanks, waited_too_long
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.shards import Shard
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


class Master(ShardServer):
    """Applies pushes in order, answers with W, and ends an epoch when all nodes have arrived.

    Args:
        shard: all parameters of an optimizer, on rank 0.
        optimizer: this optimizer; copied.
        nodes: the ranks of every node, by its first rank.
        settings: settings of the run.
        waiting_ranks: ranks that wait in a collective. The owner updates it.
        replies: port of the rank.

    Attributes:
        order: decides which node pushes next.
        counts: counts for logging.

    """

    def __init__(
        self,
        shard: Shard,
        optimizer: Optimizer,
        nodes: Mapping[int, Collection[int]],
        *,
        settings: TwoStageSettings,
        waiting_ranks: WaitingRanks,
        replies: ServerPort,
    ) -> None:
        values = ServedValues("the master's model", shard, optimizer, shard.dtype)
        super().__init__(shard, values, nodes, replies, settings.timeout_s)
        self._nodes = dict(nodes)
        self.order = OrderLock(nodes)
        self._settings = settings
        self._waiting_ranks = waiting_ranks
        self._pending: dict[int, Push] = {}
        self.counts = MasterCounts()

    @override
    def push(self, received: Received, now: float) -> None:
        """Apply a push when it is the turn of its node."""
        self._pending[received.sender] = Push.read(received, due=now + self._limit_s)
        self.advance(now)

    @override
    def arrive(self, received: Received, now: float) -> None:
        """Record that a node has ended its epoch and has nothing left to push."""
        self.order.leave(received.sender)
        super().arrive(received, now)

    @override
    def advance(self, now: float) -> None:
        """Apply all pushes whose turn it is, and end the epoch if all nodes have."""
        # Each push may start the turn of another node.
        while nodes := self._next():
            self._apply(nodes)
        if self._all_arrived:
            self._end_rendezvous()
            self.order.reopen(self._clients)

    @override
    def tick(self, now: float) -> None:
        self._check_rendezvous("at the end of an epoch", now)
        if any(push.due <= now for push in self._pending.values()):
            missing: Collection[int] = self.order.waited_for()
            if any(push.together for push in self._pending.values()):
                missing = self.order.active - self._pending.keys()
            raise waited_too_long("for the push of a node", missing)

    def _next(self) -> list[int]:
        """Nodes whose pushes are applied now: one, or all in a step of the warm-up."""
        # A node whose ranks wait in a collective does not push until the others reach it. A push
        # that it has already sent keeps its turn.
        waiting = self._waiting_ranks.ranks()
        idle = {node for node, ranks in self._nodes.items() if waiting >= set(ranks)}
        self.order.skip(idle - self._pending.keys())
        together = {node for node, push in self._pending.items() if push.together}
        if together and self.order.active <= together:
            return sorted(together)  # the sum must not depend on the order of arrival
        for node in self._pending:
            # A step of the warm-up waits for the other active nodes.
            if node in together:
                continue
            if not self._settings.order_locking or self.order.may_push(node):
                return [node]
        return []

    def _apply(self, nodes: Sequence[int]) -> None:
        """Update W with the pushes of some nodes, and answer them."""
        pushes = [self._pending.pop(node) for node in nodes]
        done = self._update(pushes)
        # Only of updates that were made: staleness counts versions.
        self.timestamp += done
        self.counts.version = self.timestamp
        for node, push in zip(nodes, pushes, strict=True):
            # The model's version before this update, minus the version at the node.
            staleness = 0 if push.together else self.timestamp - done - push.timestamp
            if done:
                self.counts.pushes += 1
                self.counts.staleness_sum += staleness
                self.counts.staleness_max = max(self.counts.staleness_max, staleness)
            if self._settings.order_locking and not push.together:
                self.order.pushed(node)
            self._replies.send(push.address, self._values_as(Kind.BLOCK, staleness=staleness))

    def _update(self, pushes: Sequence[Push]) -> bool:
        """W <- W - gamma * total, by the optimizer: a step with the mean gradient total / count.

        For SGD with learning rate eta, this is eq. 4 with gamma = eta / count (eq. 5). Returns
        False, with nothing changed, if the sum or the new W is not finite.
        """
        totals = [push.total for push in pushes if push.count]
        if not totals:
            return False
        count = sum(push.count for push in pushes)
        # Times the count, the update is that of the sum (gamma = eta).
        mean = self._settings.hierarchical_lr or pushes[0].together
        done = self.values.update(
            sum(totals[1:], totals[0]) / count,
            absent=set.intersection(*(set(push.absent) for push in pushes if push.count)),
            rate_factor=1.0 if mean else float(count),
            hyperparameters=pushes[0].hyperparameters,
        )
        self.counts.nonfinite += 0 if done else len(pushes)
        return done
