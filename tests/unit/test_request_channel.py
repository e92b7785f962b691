"""Requests are repeated until they are acknowledged, and time out."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.requests import Request, unanswered
from tests.unit.lone_channel import LoneChannel

PUSH = Message(Kind.PUSH, 4, 7, payload=torch.ones(2))
ABSTAIN = Message(Kind.ABSTAIN, 4, 7)


class Sender:
    """A channel, and the messages that it sends: time, rank and kind."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, int, Kind]] = []
        self.full: set[int] = set()
        self.channel = LoneChannel(self._send)

    def tick(self, *times: float) -> list[tuple[float, int, Kind]]:
        """Messages that are sent at these times."""
        self.sent.clear()
        for self.now in times:
            self.channel.tick(self.now)
        return list(self.sent)

    def _send(self, rank: int, message: Message) -> bool:
        if rank not in self.full:
            self.sent.append((self.now, rank, message.kind))
        return rank not in self.full


def test_intervals_between_retries_grow_to_a_limit_and_follow_the_last_answer() -> None:
    sender = Sender()
    request = Request(sender.channel, 3, retry_s=2.0)
    assert sender.tick(1e9) == []  # there is no request
    request.put(PUSH, 0.0, repeat=ABSTAIN)
    repeats = sender.tick(*range(200))
    assert [at for at, _, _ in repeats] == [2, 6, 14, 30, 60, 90, 120, 150, 180]
    assert {kind for _, _, kind in repeats} == {Kind.ABSTAIN}
    request.acknowledge(200.0)
    request.put(PUSH, 200.0)  # as long as the last answer took, up to 30 s
    assert sender.tick(229.0, 230.0) == [(230.0, 3, Kind.PUSH)]
    request.acknowledge(200.5)
    request.put(PUSH, 300.0)
    assert sender.tick(301.9, 302.0) == [(302.0, 3, Kind.PUSH)]
    assert request.retries == 11 and request.waited_s(303.0) == 3.0


def test_copy_that_is_still_queued_is_not_queued_again() -> None:
    sender = Sender()
    request = Request(sender.channel, 3, retry_s=2.0)
    request.put(PUSH, 0.0)
    sender.channel.sending.add(3)
    assert sender.tick(*range(100)) == [] and request.retries == 0
    sender.channel.sending.clear()
    assert len(sender.tick(*range(100, 200))) == request.retries > 1


def test_retry_interval_starts_when_the_request_is_sent() -> None:
    sender = Sender()
    request = Request(sender.channel, 3, retry_s=2.0)
    sender.full = {3}
    request.put(PUSH, 0.0, repeat=ABSTAIN)
    assert sender.tick(9.9) == [] and not request.sent
    sender.full = set()
    assert sender.tick(10.0, 11.9) == [(10.0, 3, Kind.PUSH)]
    assert sender.tick(12.0) == [(12.0, 3, Kind.ABSTAIN)]


def test_gradients_that_were_never_sent_are_counted() -> None:
    sender = Sender()
    request = Request(sender.channel, 3, retry_s=2.0)
    sender.full = {3}
    request.put(PUSH, 0.0)
    request.put(ABSTAIN, 1.0)
    request.put(PUSH, 2.0)
    assert request.dropped == 1


def test_error_names_a_server_that_does_not_answer_in_time() -> None:
    sender = Sender()
    request = Request(sender.channel, 3, role="the master", retry_s=2.0, limit_s=9.0)
    request.put(PUSH, 1.0)
    sender.tick(10.0)
    with pytest.raises(PeerError, match="rank 3, the master, has not answered for 9 s"):
        sender.tick(10.1)


def test_wait_handles_received_messages_and_has_a_limit() -> None:
    sender = Sender()
    channel: RequestChannel = sender.channel
    request = Request(channel, 3, retry_s=2.0)
    channel.on(Kind.BLOCK, lambda received, now: request.acknowledge(now))
    sender.channel.inbox.append(Received(3, b"", Message(Kind.BLOCK)))
    request.put(PUSH, 0.0)
    assert channel.wait(lambda now: request.message is None, lambda: "nothing") < 1.0
    request.put(PUSH, 0.0)
    with pytest.raises(
        PeerError, match=r"after 0.05 s: answers were not received from rank 3: see"
    ):
        channel.wait(
            lambda now: request.message is None,
            lambda: unanswered("answers", [request]),
            limit_s=0.05,
        )
