"""Algorithm 1 of psp_sgd, server side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch.optim import Optimizer

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import PushFacts, Round, ServerCounts
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.psp.state import write_state
from lightning_hier.parameter_server.rendezvous import Rendezvous, WaitingRanks, waited_too_long
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server_loop import Replies
from lightning_hier.parameter_server.updater import ParameterStates, Updater


@dataclass
class _Worker:
    """State of a worker on the server of a shard."""

    address: bytes = b""
    pull: int | None = None  # the worker waits for a version newer than this one


class ServedShard:
    """A shard on its server: values, the current round, and waiting workers.

    At the end of a round, the timestamp becomes one more than the newest of the round's responses.
    Each worker therefore gets a version newer than its own at the end of the round of its push, or
    immediately.

    A version is sent to a worker only on request, and only when the previous one has left the
    queue, because a second copy would delay the first one on a slow link.

    Args:
        shard: number, size and dtype.
        values: values and their Updater.
        settings: settings of the optimizer.
        waiting_ranks: workers that wait in a collective. The owner updates it.
        replies: port of the rank.
        counts: counts for logging.

    Attributes:
        timestamp: t, version of the values.
        rendezvous: rendezvous of all workers. The timestamp of an arrival is that of the next push.

    """

    def __init__(
        self,
        shard: Shard,
        values: ServedValues,
        *,
        settings: PSPSettings,
        waiting_ranks: WaitingRanks,
        replies: Replies,
        counts: ServerCounts,
    ) -> None:
        self.shard = shard
        self.values = values
        self.timestamp = 0
        self._ranks = frozenset(range(shard.world_size))
        self.rendezvous = Rendezvous(replies, self._ranks, settings.timeout_s)
        self._settings = settings
        self._waiting_ranks = waiting_ranks
        self._replies = replies
        self._counts = counts
        self._round = Round()
        self._workers: defaultdict[int, _Worker] = defaultdict(_Worker)
        self._most_advanced: PushFacts | None = None

    def respond(self, received: Received, now: float) -> None:
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
        self.end_if_complete(now)

    def arrive(self, received: Received, now: float) -> None:
        """Record the arrival of a worker at a rendezvous. It does not push until all have."""
        self.rendezvous.arrive(received, now)
        self._workers[received.sender].pull = None
        self.end_if_complete(now)

    def end_if_complete(self, now: float) -> None:
        """End the round or the rendezvous if it does not wait for any worker."""
        if self.rendezvous.is_complete:
            # The gradients of the current round are part of the model of the rendezvous.
            if self._round.responded:
                self._update()
            arrived = self.rendezvous.arrived.values()
            resumed = max(arrival.message.timestamp for arrival in arrived)
            self.timestamp = max(self.timestamp, resumed)
            flat = self.values.flat()
            self.rendezvous.end(Message(Kind.FINAL, self.shard.number, self.timestamp, {}, flat))
        elif self._round.responded and self._round_is_over(now):
            self._update()
            self._answer()

    def tick(self, now: float) -> None:
        """End rounds whose countdown is over. Raises PeerError at the time limit of a wait."""
        self.end_if_complete(now)
        self._answer()  # to workers whose previous answer has left the queue since
        self._check_limit(now)
        self.rendezvous.check_limit("at a rendezvous of all ranks", now)

    def _active(self) -> Set[int]:
        """Workers that may push now, which are not at a rendezvous or in a collective."""
        return self._ranks - self.rendezvous.arrived.keys() - self._waiting_ranks.ranks()

    def _round_is_over(self, now: float) -> bool:
        """Line 12."""
        current, active, settings = self._round, self._active(), self._settings
        wanted = self.shard.world_size
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
                hyperparameters=self._most_advanced.hyperparameters or None,
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
            answer = Message(Kind.BLOCK, self.shard.number, self.timestamp, {}, self.values.flat())
            queued = self._replies.is_sending(worker.address)
            if not queued and self._replies.send(worker.address, answer):
                worker.pull = None

    def _check_limit(self, now: float) -> None:
        """Raise PeerError if workers wait, and the round has reached the time limit."""
        if now < self._round.began + self._settings.timeout_s:
            return
        pulls = [worker.pull for worker in self._workers.values()]
        if any(pull is not None and pull >= self.timestamp for pull in pulls):
            raise waited_too_long("for gradients", self._active() - self._round.responded)


class ShardServer:
    """Serves the shards of a rank in its server loop. A :class:`.server_loop.Handler`.

    Args:
        rank: rank of this process.
        shards: all shards, the same on all ranks.
        optimizers: optimizers of the user; copied.
        settings: settings of each optimizer.
        replies: port of the rank.

    Attributes:
        served: shards that this rank serves, by number.
        counts: counts for logging.

    """

    kinds = frozenset({Kind.PUSH, Kind.ABSTAIN, Kind.ARRIVE, Kind.WAITING, Kind.STATE_REQUEST})

    def __init__(
        self,
        rank: int,
        shards: Sequence[Shard],
        optimizers: Sequence[Optimizer],
        settings: Sequence[PSPSettings],
        replies: Replies,
    ) -> None:
        self.counts = ServerCounts()
        self.served: dict[int, ServedShard] = {}
        self._replies = replies
        self._waiting_ranks = WaitingRanks()
        for shard in shards:
            if shard.home != rank or not shard.size:
                continue
            # Clones, because on the CPU the server would otherwise update the module's tensors.
            tensors = [p.detach().cpu().clone().contiguous() for p in shard.parameters]
            by_parameter = dict(zip(shard.parameters, tensors, strict=True))
            updater = Updater(optimizers[shard.optimizer], by_parameter)
            self.served[shard.number] = ServedShard(
                shard,
                ServedValues(f"shard {shard.number}", tensors, updater, shard.dtype),
                settings=settings[shard.optimizer],
                waiting_ranks=self._waiting_ranks,
                replies=replies,
                counts=self.counts,
            )

    def load(self, optimizer: int, states: ParameterStates) -> None:
        """Load the state of an optimizer for the rank's own shard, before the server starts.

        Args:
            optimizer: index of the optimizer.
            states: entry ``state`` of its ``state_dict()``, for all parameters.

        """
        for served in self.served.values():
            if served.shard.optimizer == optimizer:
                served.values.load(states)

    def handle(self, received: Received, now: float) -> None:
        """Handle a worker's message."""
        self._waiting_ranks.note(received)
        kind, number = received.message.kind, received.message.block
        if kind == Kind.WAITING:
            for served in self.served.values():
                served.end_if_complete(now)
        elif kind in (Kind.PUSH, Kind.ABSTAIN):
            self.served[number].respond(received, now)
        elif kind == Kind.ARRIVE:
            self.served[number].arrive(received, now)
        else:
            state = write_state(self.served[number].values, received.message)
            self._replies.send(received.address, state)

    def tick(self, now: float) -> None:
        """End rounds whose countdown is over, and send unsent replies. Raises PeerError."""
        for served in self.served.values():
            served.tick(now)
