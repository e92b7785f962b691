"""The ranks without which a device can't go on: the master, and its own group's first rank."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hier.comm.roll_call import PeerError
from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.two_stage.exchange import MASTER
from lightning_hier.parameter_server.two_stage.replica import Replica


class RequiredRanks:
    """Looks after them. Used by the main thread.

    Args:
        first: first rank of the group, which exchanges with the master.
        replica: of the node, where it leaves a note if it fails.
        client: of the main thread.
        check_node: raises what has ended the node's thread, where it runs on this rank.

    """

    def __init__(
        self, first: int, replica: Replica, client: Client, check_node: Callable[[], None]
    ) -> None:
        self._first = first
        self._replica = replica
        self._client = client
        self._check_node = check_node

    def check(self) -> None:
        """See that they are there.

        Raises:
            PeerError: one is gone, or the node has failed: says why.

        """
        self._check_node()
        if self._replica.failure is not None:
            raise PeerError(self._replica.failure)
        gone = self._client.gone() & {MASTER, self._first}
        if gone:
            rank = min(gone)
            part = (
                "it held the master's model, so no rank can go on"
                if rank == MASTER
                else "it exchanged this group's gradients with the master, so its group can't go on"
            )
            reason = self._client.lost().get(rank, "it has left")
            raise PeerError(
                f"rank {rank} of two-stage ASGD is gone ({reason}): {part}. See the log of rank "
                f"{rank}, and restart from the last checkpoint"
            )
