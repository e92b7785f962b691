"""Requests wait until the previous large one to their rank has left the queue."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import unanswered
from tests.unit.lone_channel import LoneChannel

PUSH = Message(Kind.PUSH, 4, 7, payload=torch.ones(2))
ABSTAIN = Message(Kind.ABSTAIN, 4, 8)
OTHER = Message(Kind.PUSH, 5, 7, payload=torch.ones(2))


def test_request_is_sent_later_unless_it_is_replaced() -> None:
    sent: list[Message] = []

    def send(rank: int, message: Message) -> bool:
        sent.append(message)
        return True

    channel = LoneChannel(send)
    channel.sending.add(3)
    for message in (PUSH, ABSTAIN, OTHER):
        channel.request(3, message)
    channel.tick()
    assert sent == [] and channel.dropped == 1
    channel.sending.clear()
    channel.tick()
    channel.tick()
    assert sent == [ABSTAIN, OTHER] and channel.dropped == 1


def test_wait_handles_received_messages_and_has_a_limit() -> None:
    channel, heard = LoneChannel(lambda rank, message: True), list[Received]()
    channel.on(Kind.BLOCK, lambda received, now: heard.append(received))
    channel.inbox.append(Received(3, b"", Message(Kind.BLOCK)))
    assert channel.wait(lambda now: bool(heard), lambda: "nothing") < 1.0
    with pytest.raises(
        PeerError, match=r"after 0.05 s: answers were not received from rank 3: see"
    ):
        channel.wait(lambda now: False, lambda: unanswered("answers", [3]), limit_s=0.05)
