"""Requests that are repeated until they are acknowledged, the retry mechanism of clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.message import Message

if TYPE_CHECKING:
    from lightning_hier.parameter_server.request_channel import RequestChannel

# An answer that takes this many times as long as the previous one is considered lost.
_LATE = 3.0


class Request:
    """A slot for one request at a time, which is repeated until it is acknowledged.

    A broken connection or a full queue can lose a message. A request that could not be sent is
    tried again at every :meth:`tick`. A sent request is repeated after three times the duration of
    the previous answer, and then at intervals that double up to a limit, because repeated requests
    would lengthen the queue of a slow link. Kind, block and timestamp identify a request, so a
    server applies a repeated one only once.

    Args:
        channel: channel that sends the request and repeats it while its thread waits.
        rank: rank that answers.
        role: role of this rank in error messages.
        retry_s: minimum time before a request is repeated, in seconds.
        longest_s: maximum time before a request is repeated, in seconds.
        limit_s: time limit of a request in seconds. Infinity: only waits of the thread have a
            limit.

    Attributes:
        rank: rank that answers.
        message: request that has not been acknowledged, or None.
        sent: whether the request has been sent.
        retries: number of repeated requests.
        dropped: number of requests with a payload that were replaced before they could be sent.

    """

    def __init__(
        self,
        channel: RequestChannel,
        rank: int,
        *,
        role: str = "a server",
        retry_s: float,
        longest_s: float = 30.0,
        limit_s: float = math.inf,
    ) -> None:
        channel.requests.append(self)
        self._channel = channel
        self._role = role
        self._retry_s = self._usual_s = self._interval_s = retry_s
        self._longest_s = longest_s
        self._limit_s = limit_s
        self._repeat: Message | None = None
        self._put_at = self._sent_at = self._due = 0.0
        self.rank = rank
        self.message: Message | None = None
        self.sent = False
        self.retries = 0
        self.dropped = 0

    def put(self, message: Message, now: float, *, repeat: Message | None = None) -> None:
        """Replace the request by a new one, and send it.

        Args:
            message: the request.
            now: the time, in seconds.
            repeat: message to send instead when the request is repeated.

        """
        if self.message is not None and not self.sent:
            self.dropped += self.message.payload.numel() > 0
        self.message = message
        self._repeat = repeat or message
        self._put_at, self._due, self.sent = now, now, False
        self.tick(now)

    def tick(self, now: float) -> None:
        """Send the request if it has not been sent, and repeat it if its answer is late.

        Raises:
            PeerError: the request was not acknowledged within its limit.

        """
        if self.message is None:
            return
        if now - self._put_at > self._limit_s:
            raise PeerError(
                f"rank {self.rank}, {self._role}, has not answered for {self._limit_s:g} s: see "
                "its log"
            )
        if now < self._due:
            return
        if self.sent:
            self._interval_s = min(2 * self._interval_s, self._longest_s)
            repeat = self._repeat or self.message
            # Not repeated while a copy is still in the queue.
            if not self._channel.is_sending(self.rank, repeat.kind, repeat.block):
                self.retries += 1
                self._channel.send(self.rank, repeat)
        elif self._channel.send(self.rank, self.message):
            self.sent = True
            self._sent_at = now
            self._interval_s = self._usual_s
        else:
            return
        self._due = now + self._interval_s

    def acknowledge(self, now: float) -> None:
        """Clear the slot when the answer has arrived."""
        # From the first copy, because the answer does not tell which copy it belongs to.
        usual_s = _LATE * (now - self._sent_at)
        self._usual_s = min(max(self._retry_s, usual_s), self._longest_s)
        self.message = self._repeat = None

    def cancel(self) -> None:
        """Clear the slot without an answer."""
        self.message = self._repeat = None

    def waited_s(self, now: float) -> float:
        """Seconds since :meth:`put`."""
        return now - self._put_at


def unanswered(what: str, requests: Iterable[Request]) -> str:
    """Error text that names the ranks that have not answered these requests for ``what``."""
    named = named_ranks(sorted({request.rank for request in requests}))
    return f"{what} were not received from {named}: see the log of {named}"
