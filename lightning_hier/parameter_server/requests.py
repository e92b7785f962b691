"""Requests that are sent again until they are acknowledged: the one retry mechanism of clients."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hier.parameter_server.message import Message

# An answer that takes this many times as long as the previous one may have been lost.
_LATE = 3.0


class PendingRequest:
    """A slot for one request at a time, sent again until it is acknowledged.

    A broken connection or a full queue can lose a message. A request that could not be sent is
    tried again at every :meth:`tick`. One that was sent is repeated after three times the time that
    the previous answer took, and then at intervals that double up to a limit: on a slow link an
    answer takes its time, and repeated requests would only lengthen the queue. Kind, block and
    timestamp of a message identify the request, so a server applies a repeated one only once.

    Args:
        send: sends a message to a rank; returns False if it could not be sent.
        retry_s: shortest time before a request is repeated, in seconds.
        longest_s: longest time before a request is repeated, in seconds.
        after: a request that must be sent before this one.

    Attributes:
        message: the request that has not been acknowledged; None if there is none.
        sent: whether it has been sent.
        retries: how many requests have been repeated.
        dropped: requests with a payload that were replaced before they could be sent.

    """

    def __init__(
        self,
        send: Callable[[int, Message], bool],
        *,
        retry_s: float,
        longest_s: float = 30.0,
        after: PendingRequest | None = None,
    ) -> None:
        self._send = send
        self._retry_s = retry_s
        self._longest_s = longest_s
        self._after = after
        self._rank = -1
        self._repeat: Message | None = None
        self._usual_s = retry_s
        self._interval_s = retry_s
        self._put_at = 0.0
        self._sent_at = 0.0
        self._due = 0.0
        self.message: Message | None = None
        self.sent = False
        self.retries = 0
        self.dropped = 0

    def put(
        self, rank: int, message: Message, now: float, *, repeat: Message | None = None
    ) -> None:
        """Replace the request by another one, and send it.

        Args:
            rank: destination.
            message: the request.
            now: the time, in seconds.
            repeat: message to send instead when the request is repeated.

        """
        if self.message is not None and not self.sent:
            self.dropped += self.message.payload is not None
        self.message = message
        self._repeat = repeat or message
        self._rank, self._put_at, self._due, self.sent = rank, now, now, False
        self.tick(now)

    def redirect(self, rank: int, now: float) -> None:
        """Send the pending request, if there is one, to another rank."""
        self._rank, self._due, self.sent = rank, now, False
        self.tick(now)

    def tick(self, now: float) -> None:
        """Send the request if it has not been sent, and repeat it if its answer is late."""
        if self.message is None or now < self._due:
            return
        if self._after is not None and self._after.message is not None and not self._after.sent:
            return
        if self.sent:
            self.retries += 1
            self._interval_s = min(2 * self._interval_s, self._longest_s)
            self._send(self._rank, self._repeat or self.message)
        elif self._send(self._rank, self.message):
            self.sent = True
            self._sent_at = now
            self._interval_s = self._usual_s
        else:
            return
        self._due = now + self._interval_s

    def defer(self, now: float) -> None:
        """Restart the interval: part of the answer has arrived."""
        self._due = now + self._interval_s

    def acknowledge(self, now: float) -> None:
        """Empty the slot: the answer has arrived."""
        usual_s = _LATE * (now - self._sent_at)
        self._usual_s = min(max(self._retry_s, usual_s), self._longest_s)
        self.message = self._repeat = None

    def cancel(self) -> None:
        """Empty the slot without an answer."""
        self.message = self._repeat = None

    def waited_s(self, now: float) -> float:
        """Seconds since the request was put."""
        return now - self._put_at
