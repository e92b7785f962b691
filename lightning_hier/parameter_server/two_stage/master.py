"""Master of two-stage ASGD: holds W, applies pushes in order, and ends epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lightning_hier.parameter_server.message import Kind, Message, missing_report
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import Rendezvous, WaitingRanks
from lightning_hier.parameter_server.server_loop import Replies, send_again
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.two_stage.pushes import OrderLock, Push
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings

_log = logging.getLogger(__name__)


@dataclass
class MasterCounts:
    """Numbers of applied and dropped pushes, and staleness.

    ``nonfinite`` includes pushes whose update was undone because of NaN or inf.
    """

    pushes: int = 0
    nonfinite: int = 0
    malformed: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0


class MasterPart:
    """Applies pushes in order, answers with W, and ends an epoch when all nodes have arrived.

    Args:
        block: number of the optimizer.
        model: model W.
        nodes: first ranks of the nodes.
        replies: port of the rank.
        idle_nodes: returns the nodes whose ranks wait in a live-rank collective.
        settings: settings of the run.

    Attributes:
        order: decides which node pushes next.
        counts: counts for logging.

    """

    def __init__(
        self,
        block: int,
        model: MasterModel,
        nodes: Iterable[int],
        replies: Replies,
        idle_nodes: Callable[[], set[int]],
        settings: TwoStageSettings,
    ) -> None:
        self._block = block
        self._model = model
        self._live = set(nodes)
        self.order = OrderLock(self._live)
        self._replies = replies
        self._idle_nodes = idle_nodes
        self._settings = settings
        self._pending: dict[int, Push] = {}
        self._applied = dict.fromkeys(self._live, 0)
        self._epochs = Rendezvous(replies, settings.timeout_s)
        self.counts = MasterCounts()

    def push(self, received: Received, now: float) -> None:
        """Apply a push when it is the turn of its node."""
        node = received.sender
        push = Push.read(received, due=now + self._settings.timeout_s)
        if node not in self._live or not self._fits(push):
            self.counts.malformed += 1
            _log.warning("dropped a malformed push of rank %d", node)
            return
        if push.number <= self._applied[node]:
            # The push was applied, but the answer was lost.
            # With the current W, because that of the first answer is not kept.
            send_again(self._replies, push.address, self._answer(push, staleness=0))
            return
        # Not for a repeated push: its node may still wait for the model at the end of an epoch.
        self._epochs.confirm(node)
        # The time limit of a repeated push starts with the first one.
        self._pending.setdefault(node, push)
        self.apply_pending()

    def arrive(self, received: Received, now: float) -> None:
        """Record that a node has ended its epoch and has nothing left to push."""
        node, number = received.sender, received.message.timestamp
        if node in self._live and self._epochs.arrive(received, number, now):
            self._end_turns(node)

    def gone(self, node: int) -> None:
        """Continue without a node. A push that has not been applied is lost."""
        if node not in self._live:
            return
        self._live.discard(node)
        self._epochs.confirm(node)
        self._epochs.arrived.pop(node, None)
        self._pending.pop(node, None)
        self._end_turns(node)

    def give_up(self, now: float) -> None:
        """Report missing nodes to those that have reached their limit."""
        self._epochs.report_missing(self._live, "at the end of an epoch", now)
        for node, push in list(self._pending.items()):
            if push.due <= now:
                missing = self._absent_from_turn()
                # The node ends with an error, so its push must not be applied later.
                del self._pending[node]
                waiting = "for the push of a node"
                report = missing_report(self._block, push.timestamp, missing, waiting)
                self._replies.send(push.address, report)

    def _fits(self, push: Push) -> bool:
        # In the warm-up, a node without a finite gradient pushes too: all make the step together.
        if push.count == 0:
            return not push.total.numel()
        return push.count > 0 and (push.total.dtype, push.total.numel()) == self._model.form

    def _absent_from_turn(self) -> Collection[int]:
        if any(push.together for push in self._pending.values()):
            return self.order.active - self._pending.keys()
        return self.order.waited_for()

    def _end_turns(self, node: int) -> None:
        self.order.leave(node)
        self.apply_pending()
        if self._epochs.arrived and not self._epochs.missing(self._live):
            self._end_epoch()

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
        for node, push in zip(nodes, pushes, strict=True):
            # The model's version before this update, minus the version at the node.
            staleness = 0 if push.together else self._model.version - done - push.timestamp
            if done:
                self.counts.pushes += 1
                self.counts.staleness_sum += staleness
                self.counts.staleness_max = max(self.counts.staleness_max, staleness)
            if self._settings.order_locking and not push.together:
                self.order.pushed(node)
            self._applied[node] = push.number
            self._replies.send(push.address, self._answer(push, staleness=staleness))

    def _update(self, pushes: Sequence[Push]) -> bool:
        totals = [push.total for push in pushes if push.count]
        if not totals:
            return False
        count = sum(push.count for push in pushes)
        # The update takes the mean gradient. Times the count, it is that of the sum (gamma = eta).
        mean = self._settings.hierarchical_lr or pushes[0].together
        done = self._model.apply(
            totals[0] if len(totals) == 1 else sum(totals[1:], totals[0]),
            count,
            rate_factor=1.0 if mean else float(count),
            hyperparameters=pushes[0].hyperparameters,
            absent=set.intersection(*(set(push.absent) for push in pushes if push.count)),
        )
        self.counts.nonfinite += 0 if done else len(pushes)
        return done

    def _answer(self, push: Push, *, staleness: int) -> Message:
        facts = {"number": push.number, "staleness": staleness}
        return Message(Kind.BLOCK, self._block, self._model.version, facts, self._model.flat())

    def _end_epoch(self) -> None:
        number = self._epochs.latest
        facts, weights = {"number": number}, self._model.flat()
        final = Message(Kind.FINAL, self._block, self._model.version, facts, weights)
        self._epochs.end(number, final)
        self.order.reopen(self._live)


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
        models: Sequence[MasterModel],
        nodes: Mapping[int, Collection[int]],
        replies: Replies,
        settings: TwoStageSettings,
    ) -> None:
        self._nodes = dict(nodes)
        self._waiting_ranks = WaitingRanks()
        self._gone: set[int] = set()
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
        """Report missing nodes to those that have reached their limit."""
        for part in self.parts:
            part.give_up(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Continue without a node whose first rank is lost. Nodes continue without other ranks."""
        self._gone.add(rank)
        for part in self.parts:
            part.gone(rank)
            # A node is idle now if all its other ranks wait in a collective.
            part.apply_pending()

    def _idle_nodes(self) -> set[int]:
        """Nodes whose live ranks all wait in a live-rank collective."""
        idle = self._waiting_ranks.ranks() | self._gone
        return {node for node, ranks in self._nodes.items() if idle.issuperset(ranks)}
