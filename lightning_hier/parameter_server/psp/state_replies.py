"""A server's replies to requests for the state of a block: STATE_REQUEST and STATE.

The state is one message for the parameters, and one for each name and dtype of the optimizer's
state, so that no message is larger than a block; numbers that are no tensors are sent as JSON.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.server_loop import RETRY_S, Replies

_log = logging.getLogger(__name__)


@dataclass
class _Reply:
    """The messages of a reply that have not been sent."""

    request: int
    unsent: deque[Message]


class StateReplies:
    """Sends copies of the state of blocks, as fast as the queues of the peers take them.

    The state of a block may be larger than the queue of one peer. A repeated request is ignored
    while the reply to it is being sent.

    Args:
        replies: port of the rank.

    Attributes:
        retry_at: time at which to call :meth:`tick`; None: all replies have been sent.

    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._pending: dict[tuple[int, bytes, int], _Reply] = {}
        self.retry_at: float | None = None

    def reply(self, received: Received, values: BlockValues, now: float) -> None:
        """Send copies of a block's values and of its optimizer's state."""
        request, address = received.message, received.address
        key = received.sender, address, request.block
        pending = self._pending.get(key)
        if pending is not None and pending.request == request.timestamp:
            if pending.unsent or self._replies.is_sending(address, Kind.STATE, request.block):
                return
        self._pending[key] = _Reply(request.timestamp, deque(write_state(values, request)))
        self._send(now)

    def tick(self, now: float) -> None:
        """Send messages that full queues did not take."""
        if self.retry_at is not None and self.retry_at <= now:
            self._send(now)

    def remove(self, rank: int) -> None:
        """Drop the replies to a rank that is gone."""
        self._pending = {key: one for key, one in self._pending.items() if key[0] != rank}

    def _send(self, now: float) -> None:
        for (_, address, _), reply in self._pending.items():
            while reply.unsent and self._replies.send(address, reply.unsent[0]):
                reply.unsent.popleft()
        left = any(reply.unsent for reply in self._pending.values())
        self.retry_at = now + RETRY_S if left else None


def write_state(values: BlockValues, request: Message) -> list[Message]:
    """The messages of the reply to a STATE_REQUEST."""
    parts: list[tuple[dict[str, Any], Tensor | None]] = [({}, values.flat())]
    tensors: defaultdict[tuple[str, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
    plain = []
    states = values.state()
    entries = [(index, *entry) for index, state in states.items() for entry in state.items()]
    for index, name, value in entries:
        if isinstance(value, Tensor):
            tensors[name, value.dtype].append((index, value))
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain.append([index, name, value])
        else:
            _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    parts.append(({"plain": plain}, None))
    for (name, _), named in tensors.items():
        shapes = [[index, list(value.shape)] for index, value in named]
        flat = torch.cat([value.reshape(-1) for _, value in named])
        parts.append(({"name": name, "shapes": shapes}, flat))
    number, count = values.block.number, len(parts)
    return [
        Message(
            Kind.STATE, number, request.timestamp, {**facts, "part": part, "parts": count}, payload
        )
        for part, (facts, payload) in enumerate(parts)
    ]
