"""Shards on a worker: copies of the parameters, and the requests to their servers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.requests import Request

_COPY_RETRY_S = 30.0


class WorkerShard:
    """One shard on a worker.

    Args:
        shard: its parameters.
        channel: of the worker.
        retry_s: shortest time before a request is repeated, in seconds.

    Attributes:
        shard: its parameters.
        host: copies of the parameters and their gradients.
        timestamp: version of the values in the parameters.
        newest: version of the newest received values.
        fresh: those values, unless the parameters have them already.
        request: the PUSH, ABSTAIN or ARRIVE that the server has not answered.
        final: number of the last rendezvous that has ended for this shard.

    """

    def __init__(self, shard: Shard, channel: RequestChannel, *, retry_s: float) -> None:
        self.shard = shard
        self.host = HostCopy(shard.parameters, shard.dtype)
        self.timestamp = 0
        self.newest = 0
        self.final = 0
        self.fresh: Tensor | None = None
        self.request = Request(channel, shard.owner, retry_s=retry_s, on_moved=self._send_copy)
        self._copy = Request(channel, shard.owner, retry_s=_COPY_RETRY_S)
        # A successor needs the copies of all workers before it can serve requests.
        self.request.after = self._copy

    def take_values(self, message: Message, now: float) -> bool:
        """Keep values if they are newer; return whether they answer the request."""
        self._copy.acknowledge(now)
        if message.timestamp > self.newest:
            self.fresh, self.newest = message.payload, message.timestamp
        request = self.request.message
        if request is None or message.timestamp <= request.timestamp:
            return False
        self.request.acknowledge(now)
        return True

    def take_final(self, message: Message, number: int) -> None:
        """Keep the values of a rendezvous, in place of any others."""
        self._copy.cancel()
        self.request.cancel()
        self.fresh, self.newest, self.final = message.payload, message.timestamp, number

    def _send_copy(self, now: float) -> None:
        """Send this worker's copy of the shard to its new server, before the request."""
        fresh = self.fresh
        copy = self.host.read_values(self.host.empty()) if fresh is None else fresh.clone()
        hold = Message(Kind.HOLD, self.shard.number, self.newest, {"final": self.final}, copy)
        self._copy.put(hold, now)


@dataclass
class OptimizerProgress:
    """Progress of a worker with the shards of one optimizer.

    Attributes:
        shards: without the empty ones.
        timestamp: t, of the next push.
        steps: number of steps, including skipped ones.
        behind: steps that other workers have made and this one has not.
        enough_since: time at which enough shards had been received.

    """

    shards: list[WorkerShard]
    timestamp: int = 0
    steps: int = 0
    behind: int = 0
    enough_since: float | None = None

    def pull(self) -> None:
        """Write received values into the parameters, in place, and take the newest timestamp.

        A shard that has not been received keeps its values (lines 3 and 4). If it arrives later,
        the next pull takes it unless a newer one has arrived. As printed it would be dropped, and a
        shard whose server is always a little late would never be updated.
        """
        newest = self.timestamp
        for one in self.shards:
            if one.fresh is not None:
                one.host.write_values(one.fresh)
                one.timestamp, one.fresh = one.newest, None
            newest = max(newest, one.timestamp)
        self.behind += max(0, newest - self.timestamp - 1)
        self.timestamp = newest
