"""Who waits in a meeting that is not over, as far as a server has heard.

A rank that waits in a meeting pushes nothing until all have come to it, and so must not be waited
for by those that have not come: they may need a server's answer on their way there.
"""

from __future__ import annotations

from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received


class Attendance:
    """What one rank's servers know of meetings.

    Meetings are numbered, the same on all ranks. A rank that waits in one says so (AWAY). Nobody
    says that it is over: pushes tell of the last meeting that is over for their sender, and to have
    left one, or to wait in the next, takes that all had come. Only the largest numbers count, so
    what comes late, twice or in another order changes nothing.
    """

    def __init__(self) -> None:
        """Begin before the first meeting, which is number 1."""
        self._came: dict[int, int] = {}
        self._over = 0

    def hear(self, received: Received) -> None:
        """Take what a message tells of meetings, whatever else it is for."""
        message, rank = received.message, received.sender
        met = message.facts.get("met")
        if type(met) is int:
            self._over = max(self._over, met)
        if message.kind == Kind.AWAY:
            self._came[rank] = max(self._came.get(rank, 0), message.timestamp)
            self._over = max(self._over, message.timestamp - 1)

    def waiting(self) -> set[int]:
        """Ranks that wait in a meeting."""
        return {rank for rank, number in self._came.items() if number > self._over}
