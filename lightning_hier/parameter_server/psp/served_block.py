"""Algorithm 1 of psp_sgd, server side, for one block."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.psp.counts import ServerCounts
from lightning_hier.parameter_server.psp.pending_pulls import PendingPulls
from lightning_hier.parameter_server.psp.push_facts import PushFacts
from lightning_hier.parameter_server.psp.rendezvous import Arrival, Rendezvous
from lightning_hier.parameter_server.psp.round import Round
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.replies import Replies

_log = logging.getLogger(__name__)


class ServedBlock:
    """The values of a block, the round under way, and the workers that wait for its end.

    At the end of a round the timestamp of the block becomes one more than the newest that has come
    in the round: as a worker takes the newest timestamp that it has seen, so does a server. With
    all of them in step that is one more than before, as printed. So every worker that waits is sent
    a version newer than its own at the end of the round that it has pushed for, or at once.

    Args:
        values: and their Updater.
        timestamp: t, version of the values.
        settings: c, tau_1 and the like.
        live: workers that are there; the owner of this set keeps it up to date.
        waiting_ranks: workers that wait in a meeting; also kept up to date by its owner.
        replies: port of the rank. What is lost is asked for again.
        counts: where to count.

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
        self._settings = settings
        self._live = live
        self._waiting_ranks = waiting_ranks
        self._replies = replies
        self._counts = counts
        self._round = Round()
        self._rendezvous = Rendezvous()
        self._waiting = PendingPulls(values.block.number, replies)
        self._newest_push: dict[int, int] = {}
        self._advanced: PushFacts | None = None
        self._final: Message | None = None
        self._moved = False

    def push(self, received: Received, now: float) -> None:
        """Take a gradient, or drop it (lines 6 to 11)."""
        worker, timestamp = received.sender, received.message.timestamp
        newest = self._newest_push.get(worker, -1)
        self._newest_push[worker] = max(newest, timestamp)
        if timestamp < self.timestamp or timestamp <= newest:
            self._counts.dropped += 1
        else:
            self._take(worker, received.message)
        self.abstain(received, now)

    def abstain(self, received: Received, now: float) -> None:
        """Note a response, and that the worker wants a newer version than it has."""
        worker, timestamp = received.sender, received.message.timestamp
        if not self._rendezvous.holds(worker, timestamp):
            self._rendezvous.remove(worker)
            self._waiting.note(worker, received.address, timestamp)
        final = received.message.facts.get("final")
        if isinstance(final, int):
            self.note_final(final)
        if timestamp >= self.timestamp:
            self._round.respond(worker, timestamp, now)
        self._answer(now)
        self.end_if_complete(now)

    def arrive(self, received: Received, now: float) -> None:
        """Note that a worker has come to a rendezvous: it pushes no more until all have."""
        number = received.message.facts.get("number")
        if not isinstance(number, int):
            _log.warning("rank %d came to a rendezvous without a number", received.sender)
            return
        if self._final is not None and number <= self.final_number:
            if not self._replies.is_sending(received.address, Kind.FINAL, self._final.block):
                self._replies.send(received.address, self._final)
            return
        self.note_final(number - 1)
        self._waiting.forget(received.sender)
        arrival = Arrival(received.address, number, received.message.timestamp)
        self._rendezvous.note(received.sender, arrival, now)
        self.end_if_complete(now)

    @property
    def final_number(self) -> int:
        """Number of the last rendezvous that has ended; 0: none has."""
        return 0 if self._final is None else int(self._final.facts["number"])

    def note_final(self, number: int) -> None:
        """End a rendezvous with the values of now, if it has not ended yet.

        It may have under an earlier server of the block. Workers that have gone on say so.
        """
        if number > self.final_number:
            self._final = self._message(Kind.FINAL, {"number": number})
            for arrival in self._rendezvous.disperse(number):
                self._replies.send(arrival.address, self._final)

    def hear_late(self, timestamp: int, final: int, flat: Tensor, now: float) -> None:
        """Hear of a worker's copy after the block was taken over and has begun to go on.

        A newer copy is taken as long as nothing has been pushed, which may have gone into it.
        """
        if timestamp > self.timestamp and not self._moved and not self._round.responded:
            self.values.adopt(flat)
            self.timestamp = timestamp
            self._answer(now)
        self.note_final(final)

    def leave(self, worker: int, now: float) -> None:
        """Wait for a worker no longer; a gradient of it in this round counts."""
        self._waiting.forget(worker)
        self._rendezvous.remove(worker)
        self.end_if_complete(now)

    def end_if_complete(self, now: float) -> None:
        """End the round, or the rendezvous, if nothing more is waited for."""
        if self._rendezvous.arrivals and not self._rendezvous.absent(self._live):
            # What is left of the round belongs to the model that all ranks will hold.
            if self._round.responded:
                self._update()
            self.timestamp = max(self.timestamp, self._rendezvous.timestamp)
            self.note_final(self._rendezvous.number)
        elif self._round.responded and self._round_is_over(now):
            self._update()
            self._answer(now)

    def deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        dues = [since + self._settings.limit_s for since in self._waited_since()]
        retry_at = self._waiting.deadline()
        if retry_at is not None:
            dues.append(retry_at)
        if self._round.enough_since is not None:
            dues.append(self._round.enough_since + self._settings.rule.timeout_s)
        return min(dues, default=None)

    def tick(self, now: float) -> None:
        """End what time ends, and tell those that have waited too long for whom they wait."""
        self.end_if_complete(now)
        self._answer(now)
        if any(since + self._settings.limit_s <= now for since in self._waited_since()):
            self._name_missing(now)

    @property
    def _warming(self) -> bool:
        return self._settings.warming(self.values.block.optimizer, self.timestamp)

    def _round_is_over(self, now: float) -> bool:
        """Line 12."""
        current, active = self._round, self._active()
        size = self._settings.world_size
        wanted = size if self._warming else self._settings.rule.needed(size)
        givers = current.givers
        needed = min(wanted, len(active | givers))
        if len(givers) < needed:
            current.enough_since = None
        elif current.enough_since is None:
            current.enough_since = now
        return self._settings.rule.is_over(
            gradients=len(givers),
            needed=needed,
            silent=len(active - current.responded),
            enough_since=current.enough_since,
            now=now,
        )

    def _active(self) -> Set[int]:
        """Workers that may push now; those at a rendezvous or in a meeting wait for the others."""
        return self._live - self._rendezvous.arrivals.keys() - self._waiting_ranks.ranks()

    def _take(self, worker: int, message: Message) -> None:
        """Keep a gradient for the update, unless something is wrong with it."""
        block, gradient = self.values.block, message.payload
        try:
            facts = PushFacts.from_facts(message.facts)
            if gradient is None or (gradient.dtype, gradient.numel()) != (block.dtype, block.size):
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
        if self._advanced is None or facts.steps > self._advanced.steps:
            self._advanced = facts

    def _update(self) -> None:
        """Lines 13 and 14, and a new round."""
        ended, self._round = self._round, Round()
        self._moved = True
        if ended.gradients and self._advanced is not None:
            scaled = self._settings.linear_scaling and not self._warming
            done = self.values.update(
                ended,
                rate_factor=float(ended.gradients) if scaled else 1.0,
                hyperparameters=self._advanced.hyperparameters or None,
            )
            self._counts.note_round(ended.gradients, done=done)
        self.timestamp = max(self.timestamp, ended.newest) + 1

    def _answer(self, now: float) -> None:
        self._waiting.answer(self.timestamp, lambda: self._message(Kind.BLOCK, {}), now)

    def _message(self, kind: Kind, facts: dict[str, Any]) -> Message:
        return Message(kind, self.values.block.number, self.timestamp, facts, self.values.flat())

    def _waited_since(self) -> list[float]:
        """Since when workers have been waiting for others, in the round and at a rendezvous."""
        both = (self._round.began, self._rendezvous.since)
        return [since for since in both if since is not None]

    def _name_missing(self, now: float) -> None:
        number = self.values.block.number
        absent = self._rendezvous.absent(self._live)
        silent = sorted(self._active() - self._round.responded)
        for address in self._waiting.unanswered(self.timestamp):
            self._replies.send(address, Message(Kind.BLOCK, number, 0, {"missing": silent}))
        facts = {"missing": sorted(absent), "number": self._rendezvous.number}
        for arrival in self._rendezvous.arrivals.values():
            self._replies.send(arrival.address, Message(Kind.FINAL, number, 0, facts))
        if self._round.began is not None:
            self._round.began = now
        if self._rendezvous.since is not None:
            self._rendezvous.since = now
