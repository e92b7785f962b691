"""The handler that serves blocks: those of its rank, and those of ranks that are gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.psp.counts import ServerCounts
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.psp.served_block import ServedBlock
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.state_replies import StateReplies
from lightning_hier.parameter_server.psp.takeover import Takeover, read_copy
from lightning_hier.parameter_server.server_loop import Replies
from lightning_hier.parameter_server.updater import ParameterStates, Updater

_log = logging.getLogger(__name__)


class BlockServer:
    """Serves blocks in the server loop of a rank (a :class:`.server_loop.Handler`).

    Args:
        rank: of this process.
        blocks: all blocks, the same on all ranks.
        optimizers: of the user; copied.
        settings: of all servers.
        replies: port of the rank.

    """

    kinds = frozenset(
        {Kind.PUSH, Kind.ABSTAIN, Kind.ARRIVE, Kind.WAITING, Kind.HOLD, Kind.STATE_REQUEST}
    )

    def __init__(
        self,
        rank: int,
        blocks: Sequence[ParameterBlock],
        optimizers: Sequence[Optimizer],
        settings: PSPSettings,
        replies: Replies,
    ) -> None:
        self.counts = ServerCounts()
        self._rank = rank
        self._settings = settings
        self._replies = replies
        self._states = StateReplies(replies)
        self._blocks = {block.number: block for block in blocks if block.size}
        self._live = set(range(settings.world_size))
        self._waiting_ranks = WaitingRanks()
        self._gone: set[int] = set()
        self._updaters: dict[int, Updater] = {}
        self._served: dict[int, ServedBlock] = {}
        self._takeovers: dict[int, Takeover] = {}
        for block in blocks:
            if block.home == rank:
                self._open(block, optimizers[block.optimizer])

    @property
    def served(self) -> Mapping[int, ServedBlock]:
        """Blocks that this rank serves, by number."""
        return self._served

    def load(self, optimizer: int, states: ParameterStates) -> None:
        """Load the state of an optimizer for the rank's own block, before it serves.

        Args:
            optimizer: its index.
            states: the entry ``state`` of its ``state_dict()``, of all parameters.

        """
        for served in self._served.values():
            if served.values.block.optimizer == optimizer:
                served.values.load(states)

    def handle(self, received: Received, now: float) -> None:
        """Handle a worker's message; those of ranks that are gone are ignored."""
        if received.sender not in self._live:
            return
        self._waiting_ranks.note(received)
        if received.message.kind == Kind.WAITING:
            for one in self._served.values():
                one.end_if_complete(now)
            return
        block = self._blocks.get(received.message.block)
        if block is None:
            return
        kind, served = received.message.kind, self._served.get(block.number)
        if served is None:
            self._takeovers.setdefault(block.number, Takeover(block)).take(received)
            self._start_takeovers(now)
        elif kind in (Kind.PUSH, Kind.ABSTAIN):
            served.respond(received, now)
        elif kind == Kind.ARRIVE:
            served.arrive(received, now)
        elif kind == Kind.STATE_REQUEST:
            self._states.reply(received, served.values, now)
        elif kind == Kind.HOLD and (copy := read_copy(received, block)) is not None:
            served.adopt_late_copy(copy.timestamp, copy.final, copy.flat, now)

    def deadline(self) -> float | None:
        """Time at which to call :meth:`tick`."""
        dues = [self._states.retry_at]
        for served in self._served.values():
            dues.append(served.deadline())
        for takeover in self._takeovers.values():
            dues.append(takeover.due(self._settings.takeover_s))
        return min([due for due in dues if due is not None], default=None)

    def tick(self, now: float) -> None:
        """End rounds and takeovers whose time is over, and send unsent replies."""
        self._states.tick(now)
        for served in list(self._served.values()):
            due = served.deadline()
            if due is not None and due <= now:
                served.tick(now)
        self._start_takeovers(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank, and take its blocks over if this rank is the next."""
        self._live.discard(rank)
        self._gone.add(rank)
        self._states.remove(rank)
        for served in list(self._served.values()):
            served.leave(rank, now)
        for takeover in self._takeovers.values():
            takeover.forget(rank)
        self._start_takeovers(now)

    def _open(self, block: ParameterBlock, optimizer: Optimizer) -> None:
        """Serve a block of this rank from the start."""
        tensors = [p.detach().cpu().clone().contiguous() for p in block.parameters]
        updater = Updater(optimizer, dict(zip(block.parameters, tensors, strict=True)))
        self._updaters[block.optimizer] = updater
        if block.size:
            self._add(BlockValues(block, tensors, updater), timestamp=0)

    def _add(self, values: BlockValues, *, timestamp: int) -> ServedBlock:
        served = self._served[values.block.number] = ServedBlock(
            values,
            timestamp=timestamp,
            settings=self._settings,
            live=self._live,
            waiting_ranks=self._waiting_ranks,
            replies=self._replies,
            counts=self.counts,
        )
        return served

    def _start_takeovers(self, now: float) -> None:
        for number, takeover in list(self._takeovers.items()):
            if takeover.block.owner(self._gone, self._settings.world_size) != self._rank:
                continue
            takeover.open(now)
            if takeover.is_over(self._live, self._settings.takeover_s, now):
                del self._takeovers[number]
                self._take_over(takeover, now)

    def _take_over(self, takeover: Takeover, now: float) -> None:
        block, copy = takeover.block, takeover.newest()
        tensors = block.tensors(copy.flat)
        updater = self._updaters[block.optimizer].sibling(
            dict(zip(block.indices, tensors, strict=True))
        )
        served = self._add(BlockValues(block, tensors, updater), timestamp=copy.timestamp)
        self.counts.takeovers += 1
        _log.warning(
            "rank %d serves block %d from now on, which was served by rank %d until that was gone: "
            "it goes on from version %d, the newest that a rank held, and the state of its "
            "optimizer (momentum, moments) starts anew",
            self._rank,
            block.number,
            block.home,
            copy.timestamp,
        )
        served.end_rendezvous(takeover.final)
        for received in takeover.kept():
            self.handle(received, now)
