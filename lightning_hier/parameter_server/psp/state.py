"""Copies of the servers' state, for a rank that saves it: STATE_REQUEST and STATE.

The state of a shard is one message for the parameters, and one for each name and dtype of the
optimizer's state, so that no message is larger than a shard. Numbers that are no tensors are sent
as JSON. A state may be larger than the queue of one peer, so it is sent as fast as the queue takes
it.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.requests import Request, unanswered
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.server_loop import RETRY_S, Replies
from lightning_hier.parameter_server.updater import ParameterStates

_REQUEST_RETRY_S = 5.0

_log = logging.getLogger(__name__)


class StateReplies:
    """A server's replies to requests for the state of its shards.

    A repeated request is ignored while the reply to it is being sent.

    Args:
        replies: port of the rank.

    Attributes:
        retry_at: time at which to call :meth:`tick`; None: all replies have been sent.

    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        # Number of the request and unsent messages, by address and shard.
        self._pending: dict[tuple[int, bytes, int], tuple[int, deque[Message]]] = {}
        self.retry_at: float | None = None

    def reply(self, received: Received, values: ServedValues, now: float) -> None:
        """Send copies of a shard's values and of its optimizer's state."""
        request, address = received.message, received.address
        key = received.sender, address, request.block
        number, unsent = self._pending.get(key, (-1, ()))
        if number == request.timestamp:
            if unsent or self._replies.is_sending(address, Kind.STATE, request.block):
                return
        self._pending[key] = request.timestamp, deque(write_state(values, request))
        self._send(now)

    def tick(self, now: float) -> None:
        """Send messages that full queues did not take."""
        if self.retry_at is not None and self.retry_at <= now:
            self._send(now)

    def remove(self, rank: int) -> None:
        """Drop the replies to a rank that is gone."""
        self._pending = {key: one for key, one in self._pending.items() if key[0] != rank}

    def _send(self, now: float) -> None:
        self.retry_at = None
        for (_, address, _), (_, unsent) in self._pending.items():
            while unsent and self._replies.send(address, unsent[0]):
                unsent.popleft()
            if unsent:
                self.retry_at = now + RETRY_S


def write_state(values: ServedValues, request: Message) -> list[Message]:
    """The messages of the reply to a STATE_REQUEST."""
    flat, states = values.snapshot()
    tensors: defaultdict[tuple[str, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
    plain = []
    for index, state in states.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[name, value.dtype].append((index, value))
            elif value is None or isinstance(value, (bool, int, float, str)):
                plain.append([index, name, value])
            else:
                _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    parts: list[tuple[dict[str, Any], Tensor | None]] = [({}, flat), ({"plain": plain}, None)]
    for (name, _), named in tensors.items():
        shapes = [[index, list(value.shape)] for index, value in named]
        flat = torch.cat([value.reshape(-1) for _, value in named])
        parts.append(({"name": name, "shapes": shapes}, flat))
    return [
        Message(
            Kind.STATE,
            request.block,
            request.timestamp,
            {**facts, "part": part, "parts": len(parts)},
            payload,
        )
        for part, (facts, payload) in enumerate(parts)
    ]


@dataclass
class ShardState:
    """Received state of a shard.

    Attributes:
        request: number of the request.
        values: of the parameters, flat.
        states: of the optimizer, by index of the parameter in it.

    """

    request: int
    values: Tensor | None = None
    states: ParameterStates = field(default_factory=dict)
    _parts: int | None = None
    _received: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether all messages have been received."""
        return self._parts is not None and len(self._received) == self._parts

    def take(self, message: Message, shard: Shard) -> None:
        """Add a STATE; those of other requests are ignored.

        Raises:
            ValueError: the message is no part of a shard's state.

        """
        facts, payload = message.facts, message.payload
        if message.timestamp != self.request:
            return
        try:
            part, self._parts = int(facts["part"]), int(facts["parts"])
            if payload is None:
                for index, name, value in facts["plain"]:
                    self._add(shard, index, name, value)
            elif "name" not in facts:
                self.values = payload.clone()
            else:
                shapes = facts["shapes"]
                pieces = payload.split([torch.Size(shape).numel() for _, shape in shapes])
                for (index, shape), piece in zip(shapes, pieces, strict=True):
                    self._add(shard, index, facts["name"], piece.clone().view(shape))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"no part of the state of shard {shard.number}: {error}") from error
        self._received.add(part)

    def _add(self, shard: Shard, index: int, name: str, value: Any) -> None:
        if index not in shard.indices:
            raise ValueError(f"parameter {index} is not in shard {shard.number}")
        self.states.setdefault(index, {})[name] = value


class StateCollector:
    """Requests the state of all shards, on any rank.

    Args:
        shards: all shards.
        channel: of the main thread.

    """

    def __init__(self, shards: Sequence[Shard], channel: RequestChannel) -> None:
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._number = 0
        self._states: dict[int, ShardState] = {}
        self._requests = {
            number: Request(
                channel,
                shard.owner,
                retry_s=_REQUEST_RETRY_S,
                on_moved=partial(self._restart, number),
            )
            for number, shard in self._shards.items()
        }

    def request(self, now: float) -> None:
        """Request the current state of all shards."""
        self._number += 1
        for number, request in self._requests.items():
            self._states[number] = ShardState(self._number)
            message = Message(Kind.STATE_REQUEST, number, self._number)
            request.put(message, now)

    def handle(self, received: Received, now: float) -> None:
        """Take a server's STATE; a malformed one is ignored and requested again."""
        number = received.message.block
        if number not in self._states:
            return
        self._requests[number].defer(now)
        try:
            self._states[number].take(received.message, self._shards[number])
        except ValueError as error:
            _log.warning("rank %d sent what can't be used: %s", received.sender, error)
        if self._states[number].complete:
            self._requests[number].acknowledge(now)

    def is_complete(self) -> bool:
        """Whether the state of all shards has been received."""
        return not self._awaited()

    def missing(self) -> str:
        """Names the ranks whose state has not been received."""
        awaited = [self._requests[number] for number in self._awaited()]
        return unanswered("the states of shards", awaited)

    def values(self) -> Mapping[Parameter, Tensor]:
        """Values of all parameters, on the host."""
        values: dict[Parameter, Tensor] = {}
        for number, state in self._states.items():
            shard = self._shards[number]
            if state.values is not None:
                tensors = shard.tensors(state.values)
                values.update(zip(shard.parameters, tensors, strict=True))
        return values

    def states(self, optimizer: int) -> ParameterStates:
        """The entry ``state`` of the optimizer's ``state_dict()``."""
        return {
            index: one
            for number, state in self._states.items()
            if self._shards[number].optimizer == optimizer
            for index, one in sorted(state.states.items())
        }

    def _restart(self, number: int, now: float) -> None:
        """Drop what a lost server has sent in part: its successor's state may differ."""
        if number in self._awaited():
            self._states[number] = ShardState(self._number)

    def _awaited(self) -> list[int]:
        return [number for number, state in self._states.items() if not state.complete]
