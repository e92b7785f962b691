"""Algorithm 1 of psp_sgd, server side, for one block."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Set
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.psp.counts import ServerCounts
from lightning_hier.parameter_server.psp.round import PushFacts, Round
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.waiting_workers import Arrival, PendingPulls, Rendezvous
from lightning_hier.parameter_server.server_loop import Replies

_log = logging.getLogger(__name__)
_NO_FACTS: Mapping[str, Any] = {}


class ServedBlock:
    """A block on its server: its values, the current round, and the workers that wait for it.

    At the end of a round the timestamp of the block becomes one more than the newest of the round's
    responses. If all workers are in step, that is one more than before, as printed. So each worker
    is sent a version newer than its own at the end of the round of its push, or at once.

    Args:
        values: and their Updater.
        timestamp: t, version of the values.
        settings: of all servers.
        live: live workers; its owner updates the set.
        waiting_ranks: workers that wait in a live-rank collective; its owner updates it.
        replies: port of the rank. Workers repeat requests whose replies are lost.
        counts: for logging.

    Attributes:
        final_number: number of the last rendezvous that has ended; 0: none has.

    """

    def __init__(
        self,
        values: BlockValues,
        *,
        timestamp: int,
        settings: PSPSettings,
        live: Set[int],
        waiting_ranks: WaitingRanks,
        replies: Replies,
        counts: ServerCounts,
    ) -> None:
        self.values = values
        self.timestamp = timestamp
        self.final_number = 0
        self._settings = settings
        self._live = live
        self._waiting_ranks = waiting_ranks
        self._replies = replies
        self._counts = counts
        self._round = Round()
        self._rendezvous = Rendezvous()
        self._pulls = PendingPulls(values.block.number, replies)
        self._newest_push: dict[int, int] = {}
        self._most_advanced: PushFacts | None = None
        self._final: Message | None = None
        self._updated = False

    def respond(self, received: Received, now: float) -> None:
        """Handle a PUSH or an ABSTAIN, which is also a request for a newer version.

        A gradient is used, or dropped (lines 6 to 11).
        """
        worker, timestamp = received.sender, received.message.timestamp
        if received.message.kind == Kind.PUSH:
            newest = self._newest_push.get(worker, -1)
            self._newest_push[worker] = max(newest, timestamp)
            if timestamp < self.timestamp or timestamp <= newest:
                self._counts.dropped += 1
            else:
                self._take(worker, received.message)
        if not self._rendezvous.is_after(worker, timestamp):
            self._rendezvous.remove(worker)
            self._pulls.add(worker, received.address, timestamp)
        final = received.message.facts.get("final")
        if isinstance(final, int):
            self.end_rendezvous(final)
        if timestamp >= self.timestamp:
            self._round.respond(worker, timestamp, now)
        self._pulls.answer(self.timestamp, self._message, now)
        self.end_if_complete(now)

    def arrive(self, received: Received, now: float) -> None:
        """Note that a worker has arrived at a rendezvous: it pushes no more until all have."""
        number = received.message.facts.get("number")
        if not isinstance(number, int):
            _log.warning("rank %d arrived at a rendezvous without a number", received.sender)
            return
        if self._final is not None and number <= self.final_number:
            if not self._replies.is_sending(received.address, Kind.FINAL, self._final.block):
                self._replies.send(received.address, self._final)
            return
        self.end_rendezvous(number - 1)
        self._pulls.remove(received.sender)
        arrival = Arrival(received.address, number, received.message.timestamp)
        self._rendezvous.add(received.sender, arrival, now)
        self.end_if_complete(now)

    def end_rendezvous(self, number: int) -> None:
        """End a rendezvous with the current values, if it has not ended yet.

        It may have ended under an earlier server of the block: messages of workers that have gone
        on carry its number.
        """
        if number > self.final_number:
            self.final_number = number
            self._final = self._message(Kind.FINAL, {"number": number})
            for arrival in self._rendezvous.end(number):
                self._replies.send(arrival.address, self._final)

    def adopt_late_copy(self, timestamp: int, final: int, flat: Tensor, now: float) -> None:
        """Take a worker's copy that arrives after the block was taken over.

        A newer copy is used unless there has been a push, which may be part of it already.
        """
        if timestamp > self.timestamp and not self._updated and not self._round.responded:
            self.values.adopt(flat)
            self.timestamp = timestamp
            self._pulls.answer(self.timestamp, self._message, now)
        self.end_rendezvous(final)

    def leave(self, worker: int, now: float) -> None:
        """Stop waiting for a worker; its gradient in this round counts."""
        self._pulls.remove(worker)
        self._rendezvous.remove(worker)
        self.end_if_complete(now)

    def end_if_complete(self, now: float) -> None:
        """End the round, or the rendezvous, if it waits for no more workers."""
        if self._rendezvous.arrivals and not self._rendezvous.absent(self._live):
            # The rest of the round belongs to the model that all ranks will hold.
            if self._round.responded:
                self._update()
            self.timestamp = max(self.timestamp, self._rendezvous.timestamp)
            self.end_rendezvous(self._rendezvous.number)
        elif self._round.responded and self._round_is_over(now):
            self._update()
            self._pulls.answer(self.timestamp, self._message, now)

    def deadline(self) -> float | None:
        """Time at which to call :meth:`tick`."""
        due = min(self._report_at(), self._pulls.retry_at)
        if self._round.enough_since is not None:
            due = min(due, self._round.enough_since + self._settings.rule.timeout_s)
        return None if due == math.inf else due

    def tick(self, now: float) -> None:
        """End rounds whose time is over, and report missing workers at the time limit."""
        self.end_if_complete(now)
        self._pulls.answer(self.timestamp, self._message, now)
        if self._report_at() <= now:
            self._report_missing(now)

    def _round_is_over(self, now: float) -> bool:
        """Line 12."""
        current, active, rule = self._round, self._active(), self._settings.rule
        size = self._settings.world_size
        warming = self._settings.warming(self.values.block.optimizer, self.timestamp)
        wanted = size if warming else rule.needed(size)
        needed = min(wanted, len(active | current.sums.keys()))
        if len(current.sums) < needed:
            current.enough_since = None
        elif current.enough_since is None:
            current.enough_since = now
        return rule.is_over(
            gradients=len(current.sums),
            needed=needed,
            silent=len(active - current.responded),
            enough_since=current.enough_since,
            now=now,
        )

    def _active(self) -> Set[int]:
        """Workers that may push now; those at a rendezvous or in a collective may not."""
        return self._live - self._rendezvous.arrivals.keys() - self._waiting_ranks.ranks()

    def _take(self, worker: int, message: Message) -> None:
        """Keep a gradient for the update, unless it is malformed or not finite."""
        block, gradient = self.values.block, message.payload
        try:
            facts = PushFacts.from_facts(message.facts)
            if gradient is None or (gradient.dtype, gradient.numel()) != block.form:
                raise ValueError(f"no gradient of {block.size} elements of {block.dtype}")
        except ValueError as error:
            _log.warning("rank %d pushed what can't be used: %s", worker, error)
            self._counts.dropped += 1
            return
        if not all_finite(gradient):
            self._counts.nonfinite += 1
            return
        self._counts.note_used(max(0, self.timestamp - facts.version))
        self._round.add(worker, gradient, facts.absent)
        if self._most_advanced is None or facts.steps > self._most_advanced.steps:
            self._most_advanced = facts

    def _update(self) -> None:
        """Lines 13 and 14, and a new round."""
        ended, self._round = self._round, Round()
        self._updated = True
        if ended.gradients and self._most_advanced is not None:
            warming = self._settings.warming(self.values.block.optimizer, self.timestamp)
            scaled = self._settings.linear_scaling and not warming
            done = self.values.update(
                ended,
                rate_factor=float(ended.gradients) if scaled else 1.0,
                hyperparameters=self._most_advanced.hyperparameters or None,
            )
            self._counts.note_round(ended.gradients, done=done)
        self.timestamp = max(self.timestamp, ended.newest) + 1

    def _message(self, kind: Kind = Kind.BLOCK, facts: Mapping[str, Any] = _NO_FACTS) -> Message:
        return Message(kind, self.values.block.number, self.timestamp, facts, self.values.flat())

    def _report_at(self) -> float:
        """Time at which workers in the round or at a rendezvous have waited too long for others."""
        return min(self._round.began, self._rendezvous.since) + self._settings.limit_s

    def _report_missing(self, now: float) -> None:
        number = self.values.block.number
        silent = sorted(self._active() - self._round.responded)
        for address in self._pulls.unanswered(self.timestamp):
            self._replies.send(address, Message(Kind.BLOCK, number, 0, {"missing": silent}))
        absent = sorted(self._rendezvous.absent(self._live))
        facts = {"missing": absent, "number": self._rendezvous.number}
        for arrival in self._rendezvous.arrivals.values():
            self._replies.send(arrival.address, Message(Kind.FINAL, number, 0, facts))
        if self._round.responded:
            self._round.began = now
        if self._rendezvous.arrivals:
            self._rendezvous.since = now
