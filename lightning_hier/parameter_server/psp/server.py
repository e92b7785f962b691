"""The handler that serves shards: that of its rank, and those of ranks that are gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import ServerCounts
from lightning_hier.parameter_server.psp.served_shard import ServedShard
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.psp.state import StateReplies
from lightning_hier.parameter_server.psp.takeover import Takeover, is_copy
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server_loop import Replies
from lightning_hier.parameter_server.updater import ParameterStates, Updater

_log = logging.getLogger(__name__)


class ShardServer:
    """Serves shards in the server loop of a rank (a :class:`.server_loop.Handler`).

    Args:
        rank: of this process.
        shards: all shards, the same on all ranks.
        optimizers: of the user; copied.
        settings: of all servers.
        replies: port of the rank.

    Attributes:
        served: shards that this rank serves, by number.
        counts: for logging.

    """

    kinds = frozenset(
        {Kind.PUSH, Kind.ABSTAIN, Kind.ARRIVE, Kind.WAITING, Kind.HOLD, Kind.STATE_REQUEST}
    )

    def __init__(
        self,
        rank: int,
        shards: Sequence[Shard],
        optimizers: Sequence[Optimizer],
        settings: PSPSettings,
        replies: Replies,
    ) -> None:
        self.counts = ServerCounts()
        self.served: dict[int, ServedShard] = {}
        self._rank = rank
        self._settings = settings
        self._replies = replies
        self._states = StateReplies(replies)
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._live = set(range(settings.world_size))
        self._gone: set[int] = set()
        self._waiting_ranks = WaitingRanks()
        self._updaters: dict[int, Updater] = {}
        self._takeovers: dict[int, Takeover] = {}
        for shard in shards:
            if shard.home != rank:
                continue
            tensors = [p.detach().cpu().clone().contiguous() for p in shard.parameters]
            held = dict(zip(shard.parameters, tensors, strict=True))
            # Also of an empty shard: that of a shard taken over later is derived from it.
            updater = self._updaters[shard.optimizer] = Updater(optimizers[shard.optimizer], held)
            if shard.size:
                self._serve(shard, tensors, updater, timestamp=0)

    def load(self, optimizer: int, states: ParameterStates) -> None:
        """Load the state of an optimizer for the rank's own shard, before it serves.

        Args:
            optimizer: its index.
            states: the entry ``state`` of its ``state_dict()``, of all parameters.

        """
        for served in self.served.values():
            if served.shard.optimizer == optimizer:
                served.values.load(states)

    def handle(self, received: Received, now: float) -> None:
        """Handle a worker's message; those of ranks that are gone are ignored."""
        if received.sender not in self._live:
            return
        self._waiting_ranks.note(received)
        kind, number = received.message.kind, received.message.block
        if kind == Kind.WAITING:
            for one in self.served.values():
                one.end_if_complete(now)
        elif number not in self._shards:
            return
        elif number not in self.served:
            takeover = self._takeovers.setdefault(number, Takeover(self._shards[number]))
            takeover.take(received)
            self._start_takeovers(now)
        elif kind in (Kind.PUSH, Kind.ABSTAIN):
            self.served[number].respond(received, now)
        elif kind == Kind.ARRIVE:
            self.served[number].arrive(received, now)
        elif kind == Kind.STATE_REQUEST:
            self._states.reply(received, self.served[number].values, now)
        elif kind == Kind.HOLD and is_copy(received, self._shards[number]):
            self.served[number].take_late_copy(received.message, now)

    def deadline(self) -> float | None:
        """Time at which to call :meth:`tick`."""
        dues = [self._states.retry_at, *(one.deadline() for one in self.served.values())]
        dues += [one.due(self._settings.takeover_s) for one in self._takeovers.values()]
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> None:
        """End rounds and takeovers whose time is over, and send unsent replies."""
        self._states.tick(now)
        for served in list(self.served.values()):
            due = served.deadline()
            if due is not None and due <= now:
                served.tick(now)
        self._start_takeovers(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank, and take its shards over if this rank is the next."""
        self._live.discard(rank)
        self._gone.add(rank)
        self._states.remove(rank)
        for served in list(self.served.values()):
            served.leave(rank, now)
        for takeover in self._takeovers.values():
            takeover.forget(rank)
        self._start_takeovers(now)

    def _serve(
        self, shard: Shard, tensors: list[Tensor], updater: Updater, *, timestamp: int
    ) -> None:
        self.served[shard.number] = ServedShard(
            shard,
            ServedValues(f"shard {shard.number}", tensors, updater, shard.dtype),
            timestamp=timestamp,
            settings=self._settings,
            live=self._live,
            waiting_ranks=self._waiting_ranks,
            replies=self._replies,
            counts=self.counts,
        )

    def _start_takeovers(self, now: float) -> None:
        for number, takeover in list(self._takeovers.items()):
            if takeover.shard.owner(self._gone) != self._rank:
                continue
            takeover.open(now)
            if takeover.is_over(self._live, self._settings.takeover_s, now):
                del self._takeovers[number]
                self._take_over(takeover, now)

    def _take_over(self, takeover: Takeover, now: float) -> None:
        shard, timestamp, flat = takeover.shard, *takeover.newest()
        tensors = shard.tensors(flat)
        held = dict(zip(shard.indices, tensors, strict=True))
        updater = self._updaters[shard.optimizer].sibling(held)
        self._serve(shard, tensors, updater, timestamp=timestamp)
        self.counts.takeovers += 1
        _log.warning(
            "rank %d serves shard %d from now on, which was served by rank %d until that was gone: "
            "it goes on from version %d, the newest that a rank held, and the state of its "
            "optimizer (momentum, moments) starts anew",
            self._rank,
            shard.number,
            shard.home,
            timestamp,
        )
        self.served[shard.number].end_rendezvous(takeover.final)
        for received in takeover.kept():
            self.handle(received, now)
