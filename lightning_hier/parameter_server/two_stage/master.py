"""Master of two-stage ASGD: holds W, applies pushes in order, and ends epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import Rendezvous, WaitingRanks, waited_too_long
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server_loop import Replies
from lightning_hier.parameter_server.two_stage.pushes import MasterCounts, OrderLock, Push
from lightning_hier.parameter_server.two_stage.replica import shared_dtype
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.updater import Updater


def master_model(optimizer: Optimizer, parameters: Sequence[Parameter]) -> ServedValues:
    """W, with the current values of the parameters, and a copy of the optimizer that updates it."""
    dtype = shared_dtype(parameters)
    # Copies, because on the CPU the master would otherwise update the module of rank 0.
    tensors = [p.detach().to("cpu", dtype, copy=True).contiguous() for p in parameters]
    updater = Updater(optimizer, dict(zip(parameters, tensors, strict=True)))
    return ServedValues("the master's model", tensors, updater, dtype)


class MasterPart:
    """Applies pushes in order, answers with W, and ends an epoch when all nodes have arrived.

    Args:
        block: number of the optimizer.
        model: model W. The server loop updates it, and the main thread copies its state.
        nodes: first ranks of the nodes.
        replies: port of the rank.
        idle_nodes: returns the nodes whose ranks all wait in a collective.
        settings: settings of the run.

    Attributes:
        order: decides which node pushes next.
        counts: counts for logging.

    """

    def __init__(
        self,
        block: int,
        model: ServedValues,
        nodes: Iterable[int],
        replies: Replies,
        idle_nodes: Callable[[], set[int]],
        settings: TwoStageSettings,
    ) -> None:
        self._block = block
        self._model = model
        self._nodes = frozenset(nodes)
        self.order = OrderLock(self._nodes)
        self._replies = replies
        self._idle_nodes = idle_nodes
        self._settings = settings
        self._pending: dict[int, Push] = {}
        self._epochs = Rendezvous(replies, self._nodes, settings.timeout_s)
        self.counts = MasterCounts()

    def push(self, received: Received, now: float) -> None:
        """Apply a push when it is the turn of its node."""
        push = Push.read(received, due=now + self._settings.timeout_s)
        self._pending[received.sender] = push
        self.apply_pending()

    def arrive(self, received: Received, now: float) -> None:
        """Record that a node has ended its epoch and has nothing left to push."""
        self._epochs.arrive(received, now)
        self.order.leave(received.sender)
        self.apply_pending()
        if self._epochs.is_complete:
            self._end_epoch()

    def check_limits(self, now: float) -> None:
        """Raise PeerError if a node has waited too long for others."""
        self._epochs.check_limit("at the end of an epoch", now)
        if any(push.due <= now for push in self._pending.values()):
            raise waited_too_long("for the push of a node", self._absent_from_turn())

    def _absent_from_turn(self) -> Collection[int]:
        if any(push.together for push in self._pending.values()):
            return self.order.active - self._pending.keys()
        return self.order.waited_for()

    def apply_pending(self) -> None:
        """Apply all pushes whose turn it is. Each of them may start the turn of another node."""
        while nodes := self._next():
            self._apply(nodes)

    def _next(self) -> list[int]:
        """Nodes whose pushes are applied now: one, or all in a step of the warm-up."""
        # A node whose ranks wait in a collective does not push until the others reach it. A push
        # that it has already sent keeps its turn.
        self.order.skip(self._idle_nodes() - self._pending.keys())
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
        self.counts.version += done
        for node, push in zip(nodes, pushes, strict=True):
            # The model's version before this update, minus the version at the node.
            staleness = 0 if push.together else self.counts.version - done - push.timestamp
            if done:
                self.counts.pushes += 1
                self.counts.staleness_sum += staleness
                self.counts.staleness_max = max(self.counts.staleness_max, staleness)
            if self._settings.order_locking and not push.together:
                self.order.pushed(node)
            facts, weights = {"staleness": staleness}, self._model.flat()
            answer = Message(Kind.BLOCK, self._block, self.counts.version, facts, weights)
            self._replies.send(push.address, answer)

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
        done = self._model.update(
            sum(totals[1:], totals[0]) / count,
            absent=set.intersection(*(set(push.absent) for push in pushes if push.count)),
            rate_factor=1.0 if mean else float(count),
            hyperparameters=pushes[0].hyperparameters,
        )
        self.counts.nonfinite += 0 if done else len(pushes)
        return done

    def _end_epoch(self) -> None:
        final = Message(Kind.FINAL, self._block, self.counts.version, {}, self._model.flat())
        self._epochs.end(final)
        self.order.reopen(self._nodes)


class Master:
    """Dispatches the nodes' messages by optimizer.

    Args:
        models: W of every optimizer.
        nodes: the ranks of every node, by its first rank.
        replies: port of the rank.
        settings: settings of the run.

    Attributes:
        models: W of every optimizer.
        parts: pushes and counts of every optimizer.

    """

    kinds = frozenset({Kind.PUSH, Kind.ARRIVE, Kind.WAITING})

    def __init__(
        self,
        models: Sequence[ServedValues],
        nodes: Mapping[int, Collection[int]],
        replies: Replies,
        settings: TwoStageSettings,
    ) -> None:
        self._nodes = dict(nodes)
        self._waiting_ranks = WaitingRanks()
        self.models = list(models)
        self.parts = [
            MasterPart(block, model, nodes, replies, self._idle_nodes, settings)
            for block, model in enumerate(models)
        ]

    def handle(self, received: Received, now: float) -> None:
        """Handle a push, the arrival of a node at the end of its epoch, or a waiting rank."""
        self._waiting_ranks.note(received)
        if received.message.kind == Kind.WAITING:
            for part in self.parts:
                part.apply_pending()
            return
        part = self.parts[received.message.block]
        if received.message.kind == Kind.PUSH:
            part.push(received, now)
        else:
            part.arrive(received, now)

    def tick(self, now: float) -> None:
        """Raise PeerError if a node has waited too long for others."""
        for part in self.parts:
            part.check_limits(now)

    def _idle_nodes(self) -> set[int]:
        """Nodes whose ranks all wait in a collective."""
        idle = self._waiting_ranks.ranks()
        return {node for node, ranks in self._nodes.items() if idle >= set(ranks)}
