"""Blocks on a worker: copies of the parameters, and requests to their servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.requests import PendingRequest

_COPY_RETRY_S = 30.0


class WorkerBlock:
    """One block on a worker.

    Args:
        block: its parameters.
        send: sends a message to a rank; returns False if it could not be sent.
        retry_s: shortest time before a request is repeated, in seconds.

    Attributes:
        host: copies of the parameters and their gradients.
        timestamp: version of the values in the parameters.
        newest: version of the newest received values.
        request: the PUSH, ABSTAIN or ARRIVE that the server has not answered.
        final: number of the last rendezvous that has ended for this block.
        owner: rank that serves the block.

    """

    def __init__(
        self, block: ParameterBlock, send: Callable[[int, Message], bool], *, retry_s: float
    ) -> None:
        self.block = block
        self.host = HostCopy(block.parameters, block.dtype)
        self.timestamp = 0
        self.newest = 0
        self.final = 0
        self.owner = block.home
        self._fresh: Tensor | None = None
        self._copy = PendingRequest(send, retry_s=_COPY_RETRY_S)
        # A successor needs the copies of all workers before it can serve requests.
        self.request = PendingRequest(send, retry_s=retry_s, after=self._copy)

    def tick(self, now: float) -> None:
        """Send unsent requests, and repeat those whose answers are late."""
        self._copy.tick(now)
        self.request.tick(now)

    def move(self, owner: int, now: float) -> None:
        """Send this worker's copy of the block, and then its request, to another server."""
        self.owner = owner
        facts = {"final": self.final}
        hold = Message(Kind.HOLD, self.block.number, self.newest, facts, self._read_copy())
        self._copy.put(owner, hold, now)
        self.request.redirect(owner, now)

    def take_block(self, message: Message, now: float) -> bool:
        """Keep values if they are newer; return whether they answer the request."""
        self._copy.acknowledge(now)
        if message.timestamp > self.newest:
            self._fresh, self.newest = message.payload, message.timestamp
        request = self.request.message
        answers = request is not None and message.timestamp > request.timestamp
        if answers:
            self.request.acknowledge(now)
        return answers

    def take_final(self, message: Message, number: int) -> None:
        """Keep the values of a rendezvous, in place of any others."""
        self._copy.cancel()
        self.request.cancel()
        self._fresh, self.newest, self.final = message.payload, message.timestamp, number

    def write(self) -> None:
        """Copy received values into the parameters, in place."""
        if self._fresh is not None:
            self.host.write_values(self._fresh)
            self.timestamp, self._fresh = self.newest, None

    def _read_copy(self) -> Tensor:
        if self._fresh is not None:
            return self._fresh.clone()
        return self.host.read_values(self.host.empty())


@dataclass
class OptimizerProgress:
    """Progress of a worker with the blocks of one optimizer.

    Attributes:
        blocks: without the empty ones.
        timestamp: t, of the next push.
        steps: number of steps, including skipped ones.
        behind: steps that other workers have made and this one has not.
        enough_since: time at which enough blocks had been received.

    """

    blocks: list[WorkerBlock]
    timestamp: int = 0
    steps: int = 0
    behind: int = 0
    enough_since: float | None = None

    def pull(self) -> None:
        """Write received blocks into the parameters, in place, and take the newest timestamp.

        A block that has not been received keeps its values (lines 3 and 4). If it arrives later,
        the next pull takes it unless a newer one has arrived. As printed it would be dropped, and a
        block whose server is always a little late would never be updated.
        """
        newest = self.timestamp
        for one in self.blocks:
            one.write()
            newest = max(newest, one.timestamp)
        self.behind += max(0, newest - self.timestamp - 1)
        self.timestamp = newest
