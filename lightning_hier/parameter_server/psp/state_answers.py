"""A server's state on its way to ranks that save it, as fast as their queues take it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.psp.state_transfer import write_state
from lightning_hier.parameter_server.replies import RETRY_S, Replies


@dataclass
class _Answer:
    """What answers a request, as far as it has not been sent."""

    request: int
    unsent: deque[Message]


class StateAnswers:
    """Answers to STATE_REQUEST.

    The state of a block with its optimizer's may be larger than what may wait for one peer. What
    the port does not take is kept and sent when there is room. A request that comes again
    meanwhile is answered by what is on its way.

    Args:
        replies: port of the rank.

    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._answers: dict[tuple[int, bytes, int], _Answer] = {}
        self._retry_at: float | None = None

    def answer(self, received: Received, values: BlockValues, now: float) -> None:
        """Send copies of a block's values and of its optimizer's state."""
        request = received.message
        key = received.sender, received.address, request.block
        answer = self._answers.get(key)
        if answer is not None and answer.request == request.timestamp and self._is_sending(key):
            return
        unsent = deque(write_state(values, request))
        self._answers[key] = _Answer(request.timestamp, unsent)
        self._send(now)

    def deadline(self) -> float | None:
        """When to try again to send what was not taken; None: everything was."""
        return self._retry_at

    def tick(self, now: float) -> None:
        """Try again, when it is time."""
        if self._retry_at is not None and self._retry_at <= now:
            self._send(now)

    def forget(self, rank: int) -> None:
        """Give up what was for a rank that is gone."""
        self._answers = {key: one for key, one in self._answers.items() if key[0] != rank}

    def _is_sending(self, key: tuple[int, bytes, int]) -> bool:
        _, address, block = key
        unsent = self._answers[key].unsent
        return bool(unsent) or self._replies.is_sending(address, Kind.STATE, block)

    def _send(self, now: float) -> None:
        for (_, address, _), answer in self._answers.items():
            while answer.unsent and self._replies.send(address, answer.unsent[0]):
                answer.unsent.popleft()
        left = any(answer.unsent for answer in self._answers.values())
        self._retry_at = now + RETRY_S if left else None
