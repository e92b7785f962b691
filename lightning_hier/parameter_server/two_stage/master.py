"""The master of two-stage ASGD: the handler on rank 0 that holds W of every optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.two_stage.master_part import MasterPart
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings


class Master:
    """Dispatches the nodes' messages by optimizer.

    Args:
        models: W of every optimizer.
        nodes: the ranks of every node, by its first rank.
        send: replies to the address of a message.
        settings: of the run.

    """

    kinds = frozenset({Kind.PUSH, Kind.ARRIVE, Kind.WAITING})

    def __init__(
        self,
        models: Sequence[MasterModel],
        nodes: Mapping[int, Collection[int]],
        send: Callable[[bytes, Message], bool],
        settings: TwoStageSettings,
    ) -> None:
        self._nodes = dict(nodes)
        self._waiting_ranks = WaitingRanks()
        self._gone: set[int] = set()
        self.models = list(models)
        self.parts = [
            MasterPart(
                block,
                model,
                nodes,
                send,
                self._idle_nodes,
                order_locking=settings.order_locking,
                hierarchical_lr=settings.hierarchical_lr,
                limit_s=settings.timeout_s,
            )
            for block, model in enumerate(models)
        ]

    def handle(self, received: Received, now: float) -> None:
        """Handle a push, the arrival of a node at the end of its epoch, or a waiting rank."""
        self._waiting_ranks.note(received)
        if received.message.kind == Kind.WAITING:
            for part in self.parts:
                part.apply_pending()
            return
        if received.message.block >= len(self.parts):
            return
        part = self.parts[received.message.block]
        if received.message.kind == Kind.PUSH:
            part.push(received, now)
        else:
            part.arrive(received, now)

    def deadline(self) -> float | None:
        """Time at which the first waiting node reaches its limit."""
        return min((due for part in self.parts if (due := part.due()) is not None), default=None)

    def tick(self, now: float) -> None:
        """Report missing nodes to those that have reached their limit."""
        for part in self.parts:
            part.give_up(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Go on without a node whose first rank is gone. Nodes go on without their other ranks."""
        self._gone.add(rank)
        for part in self.parts:
            part.gone(rank)
            part.apply_pending()

    def _idle_nodes(self) -> set[int]:
        """Nodes whose live ranks all wait in a live-rank collective."""
        idle = self._waiting_ranks.ranks() | self._gone
        return {node for node, ranks in self._nodes.items() if idle.issuperset(ranks)}
