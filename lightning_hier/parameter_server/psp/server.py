"""Algorithm 1 of psp_sgd, server side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received, ServerPort
from lightning_hier.parameter_server.psp.pushes import PushFacts, Round, ServerCounts
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server import (
    Servers,
    ShardServer,
    WaitingRanks,
    waited_too_long,
)
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import Shard


@dataclass
class _Worker:
    """State of a worker on the server of a shard."""

    address: bytes = b""
    pull: int | None = None  # the worker waits for a version newer than this one


class PSPServer(ShardServer):
    """A server of PSP-SGD, with the current round and workers that wait.

    At the end of a round, the timestamp becomes one more than the newest of the round's responses.
    Each worker therefore gets a version newer than its own at the end of the round of its push, or
    immediately.

    A version is sent to a worker only on request, and only when the previous one has left the
    queue, because a second copy would delay the first one on a slow link.

    Args:
        shard: shard on this rank.
        optimizer: its optimizer; copied.
        workers: all ranks.
        settings: settings of the optimizer.
        waiting_ranks: workers that wait in a collective. The owner updates it.
        replies: port of the rank.
        counts: counts for logging.

    """

    def __init__(
        self,
        shard: Shard,
        optimizer: Optimizer,
        workers: Set[int],
        *,
        settings: PSPSettings,
        waiting_ranks: WaitingRanks,
        replies: ServerPort,
        counts: ServerCounts,
    ) -> None:
        values = ServedValues(f"shard {shard.number}", shard, optimizer)
        super().__init__(shard, values, workers, replies, settings.timeout_s)
        self._settings = settings
        self._waiting_ranks = waiting_ranks
        self._counts = counts
        self._round = Round()
        self._workers: defaultdict[int, _Worker] = defaultdict(_Worker)
        self._most_advanced: PushFacts | None = None

    @override
    def push(self, received: Received, now: float) -> None:
        """Handle a PUSH or an ABSTAIN, which also request a newer version.

        A gradient is used, or dropped (lines 6 to 11).
        """
        message, worker = received.message, self._workers[received.sender]
        timestamp = message.timestamp
        if message.kind == Kind.PUSH:
            if timestamp < self.timestamp:  # too late for its round
                self._counts.dropped += 1
            else:
                self._take(received.sender, message)
        worker.address, worker.pull = received.address, timestamp
        # Also without a gradient, because the round waits for the response of every worker.
        if timestamp >= self.timestamp:
            current = self._round
            current.responded.add(received.sender)
            current.newest = max(current.newest, timestamp)
            current.began = min(current.began, now)
        self._answer()
        self.advance(now)

    @override
    def arrive(self, received: Received, now: float) -> None:
        self._workers[received.sender].pull = None
        super().arrive(received, now)

    @override
    def advance(self, now: float) -> None:
        """End the round or the rendezvous if it does not wait for any worker."""
        if self._all_arrived:
            # The gradients of the current round are part of the model of the rendezvous.
            if self._round.responded:
                self._update()
            resumed = max(request.message.timestamp for request in self._arrived.values())
            self.timestamp = max(self.timestamp, resumed)
            self._end_rendezvous()
        elif self._round.responded and self._round_is_over(now):
            self._update()
            self._answer()

    @override
    def tick(self, now: float) -> None:
        self.advance(now)  # at the end of a countdown
        self._answer()  # to workers whose previous answer has left the queue since
        self._check_limit(now)
        self._check_rendezvous("at a rendezvous of all ranks", now)

    def _active(self) -> Set[int]:
        """Workers that may push now, which are not at a rendezvous or in a collective."""
        return self._clients - self._arrived.keys() - self._waiting_ranks.ranks()

    def _round_is_over(self, now: float) -> bool:
        """Line 12."""
        current, active, settings = self._round, self._active(), self._settings
        wanted = len(self._clients)
        if not settings.warming(self.timestamp):
            wanted = settings.needed_pushes(wanted)
        # Workers that wait for other ranks do not push before they continue.
        needed = min(wanted, len(active | current.sums.keys()))
        return current.countdown.is_over(
            complete=active <= current.responded,
            enough=len(current.sums) >= needed,
            timeout_s=settings.push_timeout_s,
            now=now,
        )

    def _take(self, worker: int, message: Message) -> None:
        """Store a gradient for the update, unless it is not finite."""
        gradient, facts = message.payload, PushFacts(**message.facts)
        if not all_finite(gradient):
            self._counts.nonfinite += 1
            return
        self._counts.used += 1
        self._counts.staleness.append(max(0, self.timestamp - facts.version))
        self._round.add(worker, gradient, facts.absent)
        # Kept for later rounds: a worker that is behind must not restore an earlier learning rate.
        if self._most_advanced is None or facts.steps > self._most_advanced.steps:
            self._most_advanced = facts

    def _update(self) -> None:
        """Lines 13 and 14, and a new round."""
        ended, self._round = self._round, Round()
        if ended.gradients and self._most_advanced is not None:
            warming = self._settings.warming(self.timestamp)
            scaled = self._settings.linear_scaling and not warming
            done = self.values.update(
                ended.mean(),
                absent=ended.absent or (),
                rate_factor=float(ended.gradients) if scaled else 1.0,
                hyperparameters=self._most_advanced.hyperparameters,
            )
            self._counts.rounds += 1
            self._counts.in_rounds += ended.gradients
            self._counts.nonfinite += not done
        # Also after a round without a gradient: the workers wait for a newer version.
        self.timestamp = max(self.timestamp, ended.newest) + 1

    def _answer(self) -> None:
        """Send the current version to the workers that wait for it (line 3)."""
        for _, worker in sorted(self._workers.items()):
            if worker.pull is None or worker.pull >= self.timestamp:
                continue
            queued = self._replies.is_sending(worker.address)
            if not queued and self._replies.send(worker.address, self._values_as(Kind.BLOCK)):
                worker.pull = None

    def _check_limit(self, now: float) -> None:
        """Raise PeerError if workers wait, and the round has reached the time limit."""
        if now < self._round.began + self._limit_s:
            return
        pulls = [worker.pull for worker in self._workers.values()]
        if any(pull is not None and pull >= self.timestamp for pull in pulls):
            raise waited_too_long("for gradients", self._active() - self._round.responded)


def serve(
    rank: int,
    shards: Sequence[Shard],
    optimizers: Sequence[Optimizer],
    settings: Sequence[PSPSettings],
    replies: ServerPort,
    counts: ServerCounts,
) -> Servers:
    """The servers of a rank, of those of its shards that are not empty.

    ``shards`` are those of all ranks, and ``settings`` those of each optimizer.
    """
    waiting_ranks = WaitingRanks()
    servers = {
        shard.number: PSPServer(
            shard,
            optimizers[shard.optimizer],
            {each.home for each in shards},
            settings=settings[shard.optimizer],
            waiting_ranks=waiting_ranks,
            replies=replies,
            counts=counts,
        )
        for shard in shards
        if shard.home == rank and shard.size
    }
    return Servers(servers, replies, waiting_ranks)
