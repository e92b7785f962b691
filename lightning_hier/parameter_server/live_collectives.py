"""Collectives of the live ranks.

A collective of the process group waits for every rank of the job, including lost ones. These
collectives do not, so validation, metrics and checkpoints use them while a parameter server trains.
All data pass through the lowest live rank, so these collectives are intended for small tensors at
the end of an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import NO_PAYLOAD, Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import Rendezvous
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.requests import Request, unanswered
from lightning_hier.parameter_server.server_loop import Replies

# Most collectives end earlier, and servers do not have to be notified of them.
_NOTIFY_AFTER_S = 0.1

# Means in double precision, because torch has no mean of integers.
_REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.double().mean(0),
    "mean": lambda stacked: stacked.double().mean(0),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
    "product": lambda stacked: stacked.prod(0),
}


@dataclass(frozen=True)
class Contribution:
    """Data of a rank: a value that JSON can represent, and a tensor, which may be empty."""

    value: Any
    payload: Tensor


class LiveCollectives:
    """Collectives of the live ranks. All live ranks must call each of them, in the same order.

    Args:
        world_size: number of ranks at the start.
        channel: channel of the main thread.
        retry_s: minimum time before a contribution is sent again, in seconds.
        notified: ranks that are notified when this rank waits in a collective, because their
            servers must not wait for it meanwhile.

    """

    def __init__(
        self,
        world_size: int,
        channel: RequestChannel,
        *,
        retry_s: float = 5.0,
        notified: Sequence[int] = (),
    ) -> None:
        self._world_size = world_size
        self._channel = channel
        self._retry_s = retry_s
        self._notified = notified
        self._notify_at = 0.0
        self._number = 0
        self._request = Request(
            channel, self._leader, retry_s=retry_s, on_moved=self._follow_leader
        )
        self._moved = False
        self._latest: Message | None = None
        channel.on(Kind.RESULT, self._take_result)

    def all_gather(
        self, value: Any = None, payload: Tensor = NO_PAYLOAD
    ) -> dict[int, Contribution]:
        """Gather the contributions of all live ranks.

        Args:
            value: any value that JSON can represent.
            payload: 1-D tensor on the host, of any length, with the same dtype on all ranks.

        Raises:
            PeerError: a rank did not contribute within the time limit. The error names it.

        """
        self._number += 1
        now = time.monotonic()
        self._notify_at = now + _NOTIFY_AFTER_S
        # Numbered by call: all ranks call the same collectives in the same order.
        contribution = Message(Kind.CONTRIBUTION, 0, self._number, {"value": value}, payload)
        self._request.put(contribution, now)
        self._channel.wait(
            self._is_done,
            lambda: unanswered(f"the results of collective {self._number}", [self._request]),
        )
        assert self._latest is not None, "a request is acknowledged by a result"
        contributions = read_result(self._latest)
        self._channel.collectives_done = self._number
        return contributions

    def barrier(self) -> None:
        """Wait for all live ranks."""
        self.all_gather()

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the ``value`` of rank ``source``, or of the lowest live rank if it is lost.

        Raises:
            TypeError: JSON cannot represent the value. Other objects would have to be unpickled.

        """
        # An all-gather, because the source may be lost during the call. Values are small.
        gathered = self.all_gather(value)
        return gathered[source if source in gathered else min(gathered)].value

    def decide(self, decision: bool, *, all_agree: bool) -> bool:
        """Whether ``decision`` is true on all (or any) of the ranks."""
        votes = [vote.value for vote in self.all_gather(bool(decision)).values()]
        return all(votes) if all_agree else any(votes)

    def gather(self, tensor: Tensor, group: object = None) -> list[Tensor]:
        """The tensors of all ranks in order of rank. Shapes may differ.

        torchmetrics gathers the state of a metric with this signature. ``group`` is ignored.
        """
        flat = tensor.detach().reshape(-1).cpu()
        if flat.dtype == torch.bool:
            flat = flat.to(torch.uint8)  # messages do not support booleans
        gathered = self.all_gather(list(tensor.shape), flat)
        return [_shaped(contribution, tensor) for _, contribution in sorted(gathered.items())]

    def reduce(self, tensor: Tensor, operation: object) -> Tensor:
        """Reduce tensors of the same shape over the ranks, in order of rank.

        Args:
            tensor: tensor of this rank.
            operation: sum, mean, avg, min, max or product, as text or as torch's ``ReduceOp``. None
                is a sum.

        Raises:
            ValueError: the operation is not supported.

        """
        name = "sum" if operation is None else str(operation).rsplit(".", 1)[-1].lower()
        if name not in _REDUCTIONS:
            raise ValueError(
                f"the reduction must be one of {', '.join(_REDUCTIONS)}, got {operation!r}"
            )
        return _REDUCTIONS[name](torch.stack(self.gather(tensor))).to(tensor.dtype)

    def _is_done(self, now: float) -> bool:
        if self._request.message is None:
            return True
        if now >= self._notify_at:
            # Repeated, because these messages may be lost and are not acknowledged.
            self._notify_at = now + self._retry_s
            for rank in self._notified:
                self._channel.send(rank, Message(Kind.WAITING, 0, self._number))
            if self._moved:
                self._forward_result()
        return False

    def _leader(self, gone: Collection[int]) -> int:
        return min(set(range(self._world_size)).difference(gone))

    def _take_result(self, received: Received, now: float) -> None:
        # Not a second answer to a repeated contribution, nor the result of an earlier collective.
        if received.message.timestamp == self._number and self._request.message is not None:
            self._latest = received.message
            self._request.acknowledge(now)

    def _follow_leader(self, now: float) -> None:
        self._moved = True
        self._forward_result()

    def _forward_result(self) -> None:
        """Send the latest result to the new leader, so that all ranks get it."""
        if self._latest is not None:
            self._channel.send(self._request.rank, self._latest)


def _shaped(contribution: Contribution, like: Tensor) -> Tensor:
    values = contribution.payload.to(like.dtype)
    # A copy, because a received payload is a view of a frame and read-only.
    return values.reshape(contribution.value).to(like.device, copy=True)


class CollectiveLeader:
    """Handler that leads collectives on the lowest live rank.

    It collects the contributions and sends the result to all ranks. If the leader is lost, the next
    rank replaces it. Ranks that already have the result forward it to the new leader, so that all
    ranks get the same result.

    Args:
        world_size: number of ranks.
        replies: port of the rank.
        limit_s: seconds after which waiting ranks get the list of missing ranks.

    """

    kinds = frozenset({Kind.CONTRIBUTION, Kind.RESULT})

    def __init__(self, world_size: int, replies: Replies, *, limit_s: float) -> None:
        self._live = set(range(world_size))
        self._rendezvous = Rendezvous(replies, self._live, limit_s)

    def handle(self, received: Received, now: float) -> None:
        """Store a contribution, or a result of a lost leader."""
        message, number = received.message, received.message.timestamp
        if message.kind == Kind.CONTRIBUTION:
            self._rendezvous.arrive(received, number, now)
            self._end_if_complete()
        elif number > self._rendezvous.number:
            # Ranks without this result must not get another one, computed by this leader.
            self._rendezvous.end(number, message)

    def tick(self, now: float) -> None:
        """Send the list of missing ranks if the time limit has passed."""
        self._rendezvous.report_missing("in collective {number} of all ranks", now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank. Its contribution still counts if it has been received."""
        self._live.discard(rank)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        number = self._rendezvous.latest
        if self._rendezvous.is_complete:
            contributions = {
                rank: arrival.request.message
                for rank, arrival in self._rendezvous.arrived.items()
                if arrival.number == number
            }
            self._rendezvous.end(number, write_result(number, contributions))


def write_result(number: int, contributions: Mapping[int, Message]) -> Message:
    """All contributions to a collective as one message, in order of rank."""
    messages = dict(sorted(contributions.items()))
    facts = {
        "ranks": list(messages),
        "values": [message.facts["value"] for message in messages.values()],
        "counts": [message.payload.numel() for message in messages.values()],
    }
    payload = torch.cat([message.payload for message in messages.values()])
    return Message(Kind.RESULT, 0, number, facts, payload)


def read_result(message: Message) -> dict[int, Contribution]:
    """The contributions by rank."""
    facts = message.facts
    payloads = message.payload.split(facts["counts"])
    contributions = map(Contribution, facts["values"], payloads)
    return dict(zip(facts["ranks"], contributions, strict=True))
