"""The master of two-stage ASGD: a handler of rank 0, which holds W of every optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from lightning_hier.parameter_server.collective_leader import WaitingRanks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.two_stage.master_part import MasterPart
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings


class Master:
    """Hands messages of the nodes to the part of the optimizer that they are about.

    Args:
        models: W of every optimizer.
        nodes: the ranks of every node, which is named by the first of them.
        send: to an address that came with a message.
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
                self._waiting_nodes,
                order_locking=settings.order_locking,
                hierarchical_lr=settings.hierarchical_lr,
                limit_s=settings.timeout_s,
            )
            for block, model in enumerate(models)
        ]

    def handle(self, received: Received, now: float) -> None:
        """Take a push, the arrival of a node at the end of its epoch, or that a rank waits."""
        self._waiting_ranks.note(received)
        if received.message.kind == Kind.WAITING:
            for part in self.parts:
                part.work_off()
            return
        if received.message.block >= len(self.parts):
            return
        part = self.parts[received.message.block]
        if received.message.kind == Kind.PUSH:
            part.push(received, now)
        else:
            part.arrive(received, now)

    def deadline(self) -> float | None:
        """When the first node has waited too long for another."""
        return min((due for part in self.parts if (due := part.due()) is not None), default=None)

    def tick(self, now: float) -> None:
        """Tell nodes that have waited too long who is missing."""
        for part in self.parts:
            part.give_up(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Go on without a node whose first rank is gone. Other ranks are their node's affair."""
        self._gone.add(rank)
        for part in self.parts:
            part.gone(rank)
            part.work_off()

    def _waiting_nodes(self) -> set[int]:
        """Nodes of which all ranks that are there wait in a meeting."""
        idle = self._waiting_ranks.ranks() | self._gone
        return {node for node, ranks in self._nodes.items() if idle.issuperset(ranks)}
