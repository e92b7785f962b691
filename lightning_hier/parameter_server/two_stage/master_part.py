"""What the master does with the messages about one optimizer's parameters. No input or output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.two_stage.order_lock import OrderLock
from lightning_hier.parameter_server.two_stage.push import Push, read_push

_log = logging.getLogger(__name__)


@dataclass
class MasterCounts:
    """Totals: pushes applied, those kept out for what is wrong with them, and staleness.

    ``nonfinite`` are also those whose update was undone, because NaN or inf came of it.
    """

    pushes: int = 0
    nonfinite: int = 0
    malformed: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0


@dataclass(frozen=True)
class _Arrival:
    address: bytes
    due: float


class MasterPart:
    """Takes pushes in their order, answers with W, and ends an epoch when all nodes have.

    Args:
        block: number of the optimizer.
        model: W.
        nodes: the nodes, named by their first ranks.
        send: to an address that came with a message.
        waiting: nodes that add nothing at present, because their ranks wait in a meeting.
        order_locking: False takes pushes as they come.
        hierarchical_lr: False: gamma = eta instead of eta / n.
        limit_s: how long a push or an arrival may wait for the others.

    """

    def __init__(
        self,
        block: int,
        model: MasterModel,
        nodes: Iterable[int],
        send: Callable[[bytes, Message], bool],
        waiting: Callable[[], set[int]],
        *,
        order_locking: bool,
        hierarchical_lr: bool,
        limit_s: float,
    ) -> None:
        self._block = block
        self._model = model
        self._live = set(nodes)
        self._order = OrderLock(self._live)
        self._send = send
        self._waiting_nodes = waiting
        self._order_locking = order_locking
        self._hierarchical_lr = hierarchical_lr
        self._limit_s = limit_s
        self._waiting: dict[int, Push] = {}
        self._applied = dict.fromkeys(self._live, 0)
        self._arrived: dict[int, _Arrival] = {}
        self._finals = 0
        self._final: Message | None = None
        self._without_final: set[int] = set()
        self.counts = MasterCounts()

    @property
    def order(self) -> list[int]:
        """The order that is locked, as far as it is known."""
        return self._order.order

    def push(self, received: Received, now: float) -> None:
        """Apply a push if it is its node's turn, or keep it until then."""
        node = received.sender
        push = read_push(received.message, received.address, due=now + self._limit_s)
        if node not in self._live or push is None or not self._fits(push):
            self.counts.malformed += 1
            _log.warning("dropped a push of rank %d that can't be meant", node)
            return
        if push.number <= self._applied[node]:
            self._answer(push, staleness=0)  # it was applied, and the answer was lost on the way
            return
        self._forget_final(node)
        earlier = self._waiting.get(node)
        # A node that repeats itself has been waiting since it said it first.
        self._waiting[node] = push if earlier is None else replace(push, due=earlier.due)
        self.work_off()

    def arrive(self, received: Received, now: float) -> None:
        """Note that a node has come to the end of its epoch, with nothing left to push."""
        node, number = received.sender, received.message.timestamp
        if self._final is not None and number == self._finals:
            self._send(received.address, self._final)  # the first one was lost on the way
        if node not in self._live or number != self._finals + 1:
            return
        earlier = self._arrived.get(node)
        due = now + self._limit_s if earlier is None else earlier.due
        self._arrived[node] = _Arrival(received.address, due)
        self._pass_over(node)

    def gone(self, node: int) -> None:
        """Go on without a node. What it has pushed and was not applied yet is lost."""
        if node not in self._live:
            return
        self._live.discard(node)
        self._forget_final(node)
        self._arrived.pop(node, None)
        self._waiting.pop(node, None)
        self._pass_over(node)

    def due(self) -> float | None:
        """When the first of those who wait has waited too long."""
        return min((one.due for one in self._waiters().values()), default=None)

    def give_up(self, now: float) -> None:
        """Tell those who have waited too long who is missing."""
        for node, waiter in self._waiters().items():
            if waiter.due <= now:
                pushing = node in self._waiting
                absent = self._absent_from_turn() if pushing else self._absent_from_rendezvous()
                facts = {"missing": absent, "place": "turn" if pushing else "rendezvous"}
                self._waiting.pop(node, None)
                self._arrived.pop(node, None)
                self._send(waiter.address, Message(Kind.ORDER, self._block, 0, facts))

    def _fits(self, push: Push) -> bool:
        if push.total is None:
            return push.count == 0
        fits = push.total.numel() == len(self._model) and push.total.dtype == self._model.dtype
        return fits and push.count > 0

    def _forget_final(self, node: int) -> None:
        """Free the last model of an epoch once every node has been heard of since, or is gone."""
        self._without_final.discard(node)
        if not self._without_final:
            self._final = None

    def _waiters(self) -> dict[int, Push | _Arrival]:
        return {**self._waiting, **self._arrived}

    def _absent_from_turn(self) -> list[int]:
        if any(push.together for push in self._waiting.values()):
            return sorted(self._order.active - self._waiting.keys())
        return self._order.waited_for()

    def _absent_from_rendezvous(self) -> list[int]:
        return sorted(self._live - self._arrived.keys())

    def _pass_over(self, node: int) -> None:
        self._order.leave(node)
        self.work_off()
        if self._live and self._live == self._arrived.keys():
            self._end_epoch()

    def work_off(self) -> None:
        """Apply all pushes whose turn it is. One makes it another one's turn."""
        while (node := self._next()) is not None:
            self._take(node)

    def _next(self) -> int | None:
        # A node whose ranks wait in a collective pushes nothing until the others reach it. A push
        # that it has sent before keeps its turn.
        self._order.pass_over(self._waiting_nodes() - self._waiting.keys())
        together = {node for node, push in self._waiting.items() if push.together}
        if together:
            self._step_together(together)
        for node, push in self._waiting.items():
            turn = not self._order_locking or self._order.may_push(node)
            if turn and not push.together:
                return node
        return None

    def _take(self, node: int) -> None:
        push = self._waiting.pop(node)
        staleness = self._model.version - push.version
        factor = 1.0 if self._hierarchical_lr else float(push.count)
        if push.total is not None and self._model.apply(
            push.total,
            push.count,
            rate_factor=factor,
            hyperparameters=push.hyperparameters,
            absent=push.absent,
        ):
            self.counts.pushes += 1
            self.counts.staleness_sum += staleness
            self.counts.staleness_max = max(self.counts.staleness_max, staleness)
        else:
            self.counts.nonfinite += 1
        if self._order_locking:
            self._order.pushed(node)
        self._applied[node] = push.number
        self._answer(push, staleness=staleness)

    def _step_together(self, nodes: set[int]) -> None:
        """One synchronous step of the warm-up, once all nodes that train have pushed for it."""
        if not self._order.active <= nodes:
            return
        pushes = [self._waiting.pop(node) for node in sorted(nodes)]
        given = [(push.total, push.absent) for push in pushes if push.total is not None]
        if given:
            totals, absent = zip(*given, strict=True)
            applied = self._model.apply(
                totals[0] if len(totals) == 1 else sum(totals[1:], totals[0]),
                sum(push.count for push in pushes),
                rate_factor=1.0,
                hyperparameters=pushes[0].hyperparameters,
                absent=frozenset.intersection(*absent),
            )
            if applied:
                self.counts.pushes += len(pushes)
            else:
                self.counts.nonfinite += len(pushes)
        for node, push in zip(sorted(nodes), pushes, strict=True):
            self._applied[node] = push.number
            self._answer(push, staleness=0)

    def _answer(self, push: Push, *, staleness: int) -> None:
        facts = {"number": push.number, "staleness": staleness}
        answer = Message(Kind.BLOCK, self._block, self._model.version, facts, self._model.copy())
        self._send(push.address, answer)

    def _end_epoch(self) -> None:
        self._finals += 1
        facts = {"number": self._finals}
        weights = self._model.copy()
        self._final = Message(Kind.FINAL, self._block, self._model.version, facts, weights)
        self._without_final = set(self._live)
        for arrival in self._arrived.values():
            self._send(arrival.address, self._final)
        self._arrived.clear()
        self._order.reopen(self._live)
