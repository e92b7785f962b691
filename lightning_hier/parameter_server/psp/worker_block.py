"""What a worker holds of one block, and what it has asked of the block's server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.patience import Patience
from lightning_hier.parameter_server.psp.plan import ParameterBlock

_LONGEST_SILENCE_S = 30.0


class WorkerBlock:
    """One block on a worker.

    A message may be lost, by a broken connection or a full queue. So a request is remembered until
    it is answered, and put again after a while, later on a line where answers take longer: a
    gradient as ABSTAIN, which costs no traffic and asks for the same. If it was the gradient that
    was lost, the round does without it.

    Args:
        block: what it is.
        send: to a rank; False if it could not be sent.
        ask_again_s: after so many seconds of silence at least a request is put again.

    Attributes:
        host: copies of the parameters and their gradients.
        timestamp: version of the values in the parameters.
        fresh: newer values, not yet in the parameters.
        request: what has been asked and not been answered.
        final: number of the last rendezvous that has ended for this block.
        owner: rank that serves the block.

    """

    def __init__(
        self, block: ParameterBlock, send: Callable[[int, Message], bool], *, ask_again_s: float
    ) -> None:
        self.block = block
        self.host = HostCopy(block.parameters, block.dtype)
        self.timestamp = 0
        self.fresh: Message | None = None
        self.request: Message | None = None
        self.final = 0
        self.owner = block.home
        self._send = send
        self._patience = Patience(ask_again_s)
        self._unsent: list[Message] = []
        self._held_out_at: float | None = None

    @property
    def newest(self) -> int:
        """Timestamp of the newest values that have come."""
        return self.timestamp if self.fresh is None else self.fresh.timestamp

    def ask(self, request: Message, now: float) -> bool:
        """Put a request in place of the one before.

        Returns:
            False if the one before is given up: it was a gradient that could not be sent.

        """
        given_up = [one for one in self._unsent if one.kind == Kind.PUSH]
        self._unsent = [one for one in self._unsent if one.kind == Kind.HOLD]
        self.request = request
        self._queue(request, now)
        return not given_up

    def tick(self, now: float) -> None:
        """Send what could not be sent, and put a request again that has not been answered."""
        if self._held_out_at is not None and now - self._held_out_at >= _LONGEST_SILENCE_S:
            self._hold_out(now)
        self._flush(now)
        again = self.request
        if again is not None and not self._unsent and self._patience.asks_again(now):
            if again.kind == Kind.PUSH:
                facts = {
                    "final": self.final,
                    "collectives_done": again.facts.get("collectives_done", 0),
                }
                again = replace(again, kind=Kind.ABSTAIN, facts=facts, payload=None)
            self._send(self.owner, again)

    def move(self, owner: int, now: float) -> None:
        """Speak to another server: first of what this worker holds, then of what it has asked."""
        self.owner = owner
        self._unsent = [] if self.request is None else [self.request]
        self._hold_out(now)
        self._queue(None, now)

    def take_block(self, message: Message, now: float) -> bool:
        """Keep values if they are newer; tell whether they answer the request."""
        self._held_out_at = None
        if message.timestamp > self.newest:
            self.fresh = message
        answers = self.request is not None and message.timestamp > self.request.timestamp
        if answers:
            self.request = None
            self._patience.answered(now)
        return answers

    def take_final(self, message: Message, number: int) -> None:
        """Keep the values at a rendezvous, whatever has come before."""
        self.fresh, self.request, self.final = message, None, number
        self._held_out_at = None

    def write(self) -> None:
        """Copy fresh values into the parameters, in place."""
        if self.fresh is not None and self.fresh.payload is not None:
            self.host.write_values(self.fresh.payload)
            self.timestamp = self.fresh.timestamp
        self.fresh = None

    def _hold_out(self, now: float) -> None:
        """Tell the server what this worker holds: it can't start before it knows."""
        self._held_out_at = now
        facts = {"final": self.final}
        hold = Message(Kind.HOLD, self.block.number, self.newest, facts, self._held())
        self._unsent = [hold, *(one for one in self._unsent if one.kind != Kind.HOLD)]

    def _held(self) -> Tensor:
        if self.fresh is not None and self.fresh.payload is not None:
            return self.fresh.payload.clone()
        return self.host.read_values(self.host.empty())

    def _queue(self, message: Message | None, now: float) -> None:
        if message is not None:
            self._unsent.append(message)
        self._flush(now)

    def _flush(self, now: float) -> None:
        while self._unsent and self._send(self.owner, self._unsent[0]):
            if self._unsent.pop(0) is self.request:
                self._patience.begin(now)
