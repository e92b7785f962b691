"""Handler that serves the shards of its rank."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

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
            self._send_state(received)

    def tick(self, now: float) -> None:
        """End rounds whose countdown is over, and send unsent replies. Raises PeerError."""
        for served in self.served.values():
            served.tick(now)

    def _send_state(self, received: Received) -> None:
        """Send a shard's state once. The request is repeated if the state is lost or not sent."""
        request = received.message
        if not self._replies.is_sending(received.address, Kind.STATE, request.block):
            state = write_state(self.served[request.block].values, request)
            self._replies.send(received.address, state)
