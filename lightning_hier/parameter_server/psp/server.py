"""Handler that serves the shard of its rank, and shards of lost ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.algorithms.kernels import all_finite
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import ServerCounts
from lightning_hier.parameter_server.psp.served_shard import ServedShard
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.psp.state import write_state
from lightning_hier.parameter_server.rendezvous import WaitingRanks
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server_loop import Replies
from lightning_hier.parameter_server.updater import ParameterStates, Updater

# Seconds that the successor of a server waits for the workers' copies.
_TAKEOVER_S = 30.0

_log = logging.getLogger(__name__)


class ShardServer:
    """Serves shards in the server loop of a rank. A :class:`.server_loop.Handler`.

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

    kinds = frozenset(
        {Kind.PUSH, Kind.ABSTAIN, Kind.ARRIVE, Kind.WAITING, Kind.HOLD, Kind.STATE_REQUEST}
    )

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
        self._rank = rank
        self._settings = settings
        self._replies = replies
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._live = {shard.home for shard in shards}
        self._gone: set[int] = set()
        self._waiting_ranks = WaitingRanks()
        self._updaters: dict[int, Updater] = {}
        self._takeovers: dict[int, Takeover] = {}
        for shard in shards:
            if shard.home != rank:
                continue
            # Clones, because on the CPU the server would otherwise update the module's tensors.
            tensors = [p.detach().cpu().clone().contiguous() for p in shard.parameters]
            by_parameter = dict(zip(shard.parameters, tensors, strict=True))
            # Also for an empty shard, because the Updater of a shard taken over is derived from it.
            updater = Updater(optimizers[shard.optimizer], by_parameter)
            self._updaters[shard.optimizer] = updater
            if shard.size:
                self._serve(shard, tensors, updater, timestamp=0)

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
        """Handle a worker's message. Messages of lost ranks are ignored."""
        if received.sender not in self._live:
            return
        self._waiting_ranks.note(received)
        kind, number = received.message.kind, received.message.block
        if kind == Kind.WAITING:
            for served in self.served.values():
                served.end_if_complete(now)
        elif number not in self.served:
            # The worker has lost the server of the shard. This rank may learn of the loss later.
            if kind == Kind.HOLD:
                self._take_copy(received, now)
            # A request is repeated until it is answered, but without its gradient.
            self.counts.dropped += kind == Kind.PUSH
        elif kind in (Kind.PUSH, Kind.ABSTAIN):
            self.served[number].respond(received, now)
        elif kind == Kind.ARRIVE:
            self.served[number].arrive(received, now)
        elif kind == Kind.STATE_REQUEST:
            self._send_state(received)
        # A HOLD after the takeover is ignored, because older values have been updated since. The
        # timestamp of its worker's next push brings that of the shard up to date.

    def tick(self, now: float) -> None:
        """End rounds and takeovers whose countdown is over, and send unsent replies."""
        for served in self.served.values():
            served.tick(now)
        self._start_takeovers(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank, and take over its shards if this rank is the successor."""
        self._live.discard(rank)
        self._gone.add(rank)
        for served in self.served.values():
            served.leave(rank, now)
        # Copies may have arrived before this rank has detected the loss.
        self._start_takeovers(now)

    def _serve(
        self, shard: Shard, tensors: list[Tensor], updater: Updater, *, timestamp: int
    ) -> None:
        self.served[shard.number] = ServedShard(
            shard,
            ServedValues(f"shard {shard.number}", tensors, updater, shard.dtype),
            timestamp=timestamp,
            settings=self._settings[shard.optimizer],
            live=self._live,
            waiting_ranks=self._waiting_ranks,
            replies=self._replies,
            counts=self.counts,
        )

    def _send_state(self, received: Received) -> None:
        """Send a shard's state once. The request is repeated if the state is lost or not sent."""
        request = received.message
        if not self._replies.is_sending(received.address, Kind.STATE, request.block):
            state = write_state(self.served[request.block].values, request)
            self._replies.send(received.address, state)

    def _take_copy(self, received: Received, now: float) -> None:
        """Store a worker's copy of a shard whose server is lost, unless it is not finite."""
        shard = self._shards[received.message.block]
        # The copy counts as missing, so the takeover waits for its time limit.
        if not all_finite(received.message.payload):
            number = shard.number
            _log.warning("rank %d sent no finite copy of shard %d", received.sender, number)
            return
        self._takeovers.setdefault(shard.number, Takeover(shard, now)).take(received)
        self._start_takeovers(now)

    def _start_takeovers(self, now: float) -> None:
        for number, takeover in list(self._takeovers.items()):
            is_due = now >= takeover.since + _TAKEOVER_S
            # Otherwise a rank that precedes this one is the successor.
            is_own = takeover.shard.owner(self._gone) == self._rank
            if is_own and (is_due or self._live <= takeover.copies.keys()):
                del self._takeovers[number]
                self._take_over(takeover)

    def _take_over(self, takeover: Takeover) -> None:
        shard, timestamp, flat = takeover.shard, *takeover.newest()
        tensors = shard.tensors(flat)
        by_index = dict(zip(shard.indices, tensors, strict=True))
        updater = self._updaters[shard.optimizer].sibling(by_index)
        self._serve(shard, tensors, updater, timestamp=timestamp)
        self.counts.takeovers += 1
        _log.warning(
            "rank %d has taken over shard %d of rank %d, which is lost: the shard continues from "
            "version %d, the newest copy of any rank, with new optimizer state (momentum, "
            "moments)",
            self._rank,
            shard.number,
            shard.home,
            timestamp,
        )
        self.served[shard.number].end_rendezvous(takeover.final)


@dataclass
class Takeover:
    """Copies of a shard that live workers hold.

    The shard starts from the newest copy. Later updates by the lost server, and the optimizer
    state, are lost. A worker that has lost the server sends its copy and then its requests, which
    it repeats until the shard is served. A rank starts to serve when all live workers have sent
    their copies or a time limit has passed since the first one, and only if all preceding ranks are
    lost to it. Two ranks therefore do not serve the same shard as long as the ranks agree on the
    live ranks.

    Attributes:
        shard: number, size and dtype.
        since: time of the first copy.
        copies: version and values by worker.
        final: number of the last rendezvous that has ended for any worker.

    """

    shard: Shard
    since: float
    copies: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    final: int = 0

    def take(self, received: Received) -> None:
        """Store a worker's copy."""
        message = received.message
        # Cloned, because a received payload is a view of a frame.
        self.copies[received.sender] = message.timestamp, message.payload.clone()
        self.final = max(self.final, message.facts["final"])

    def newest(self) -> tuple[int, Tensor]:
        """Version and values of the newest copy. Among equal versions, that of the lowest rank."""
        newest = max(self.copies, key=lambda worker: (self.copies[worker][0], -worker))
        return self.copies[newest]
