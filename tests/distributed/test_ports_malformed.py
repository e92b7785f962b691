"""Malformed, oversized, replayed and truncated messages of ranks are dropped and counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lightning_hier.parameter_server.message import Kind, Limits, Message
from lightning_hier.parameter_server.wire import encode
from tests.distributed.port_ranks import Serving, counted, heard, opened
from tests.waiting import wait_until


def _frames(sequence: int, **fields: Any) -> list[bytes]:
    """Frames of a push that has one part."""
    message = Message(Kind.PUSH, **fields)
    [part] = encode(message, sequence, Limits())
    return [bytes(frame) for frame in part]


_PUSH = _frames(1)


@pytest.mark.parametrize(
    "frames",
    [[], [_PUSH[0], b"{", b""], _frames(1, payload=torch.zeros(300))],
    ids=["none", "json", "oversized"],
)
def test_malformed_message_of_a_rank_is_dropped(frames: Sequence[bytes]) -> None:
    """The next message of the rank is received. tests/unit/test_messages.py tests all faults."""
    limits = Limits(payload_bytes=1000)
    with opened(2, limits=limits) as [ports, other], Serving(ports) as serving:
        client = other.open_client("main")
        client._sockets[0].send_multipart(list(frames) or [b""])
        counted(ports, "malformed")
        assert client.send(0, Message(Kind.ARRIVE))
        wait_until(lambda: serving.received, "the next message")
        assert [r.message.kind for r in serving.received] == [Kind.ARRIVE]
        assert ports.refusals() == {"malformed": 1}


def test_frame_far_beyond_the_limit_is_not_read() -> None:
    """ZeroMQ closes the connection, and then connects again."""
    limits = Limits(payload_bytes=1000, facts_bytes=1000)
    with opened(2, limits=limits) as [ports, other], Serving(ports) as serving:
        client = other.open_client("main")
        client._sockets[0].send_multipart(_frames(1, payload=torch.zeros(100_000)))
        wait_until(
            lambda: client.send(0, Message(Kind.ARRIVE)) and serving.received, "the next message"
        )
        assert {r.message.kind for r in serving.received} == {Kind.ARRIVE}


def test_message_that_comes_again_is_dropped() -> None:
    with opened(2) as [ports, other], Serving(ports) as serving:
        client = other.open_client("main")
        for sequence, timestamp in ((1, 1), (3, 2), (3, 3), (2, 4), (1, 5), (4, 6)):
            client._sockets[0].send_multipart(_frames(sequence, timestamp=timestamp))
        wait_until(lambda: len(serving.received) >= 3, "the new messages")
        assert [r.message.timestamp for r in serving.received] == [1, 2, 6]
        assert ports.refusals() == {"replayed": 3}


def test_truncated_message_is_dropped() -> None:
    """The next message is received. Parts without a first part are malformed."""
    payload = torch.arange(100, dtype=torch.uint8)
    with opened(2) as [ports, other], Serving(ports) as serving:
        raw = other.open_client("main")._sockets[0]

        def send(sequence: int, which: slice) -> None:
            for frames in encode(Message(Kind.PUSH, payload=payload), sequence, Limits(), 30)[
                which
            ]:
                raw.send_multipart(frames)

        send(1, slice(0, 2))
        send(5, slice(0, 4))
        send(9, slice(1, 3))
        send(13, slice(0, 4))
        wait_until(lambda: len(serving.received) == 2, "the complete messages")
        for received in serving.received:
            assert torch.equal(received.message.payload, payload)
        assert ports.refusals() == {"truncated": 1, "malformed": 2}


def test_malformed_and_replayed_replies_are_dropped() -> None:
    with opened(2) as [ports, other]:
        client = other.open_client("main")
        client.send(0, Message(Kind.PUSH))
        received = heard(ports.server)
        for frames in (_frames(1, timestamp=1), _PUSH, [b"?"], _frames(2, timestamp=2)):
            ports.server._socket.send_multipart([received.address, *frames])
        for timestamp in (1, 2):
            answer = heard(client)
            assert answer.message.timestamp == timestamp
        assert other.refusals() == {"replayed": 1, "malformed": 1}


def test_each_reason_is_logged_once_for_each_peer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), opened(3) as [ports, *others]:
        with Serving(ports):
            for other in others:
                raw = other.open_client("main")._sockets[0]
                for frames in ([b"?"], [b"?"], _PUSH, _PUSH, _PUSH):
                    raw.send_multipart(frames)
            counted(ports, "malformed", 4)
            counted(ports, "replayed", 4)
    messages = sorted(record.getMessage() for record in caplog.records)
    assert messages == [
        "refused from rank 1: malformed (1 frames instead of 3)",
        "refused from rank 1: replayed (PUSH 1 after 1)",
        "refused from rank 2: malformed (1 frames instead of 3)",
        "refused from rank 2: replayed (PUSH 1 after 1)",
    ]
