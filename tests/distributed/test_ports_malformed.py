"""Malformed messages of ranks are dropped and counted, and the next message is received."""

from __future__ import annotations

import logging

import pytest

from lightning_hier.parameter_server.message import Kind, Message
from tests.distributed.port_ranks import Serving, counted, opened
from tests.waiting import wait_until


@pytest.mark.parametrize("frames", [[b""], [b"[1, 0", b""]], ids=["none", "json"])
def test_malformed_message_of_a_rank_is_dropped(frames: list[bytes]) -> None:
    """tests/unit/test_messages.py tests all faults."""
    with opened(2) as [ports, other], Serving(ports) as serving:
        client = other.clients["main"]
        client._sockets[0].send_multipart(frames)
        counted(ports, "malformed")
        assert client.send(0, Message(Kind.ARRIVE))
        wait_until(lambda: serving.received, "the next message")
        assert [r.message.kind for r in serving.received] == [Kind.ARRIVE]
        assert ports.refusals() == {"malformed": 1}


def test_each_reason_is_logged_once_for_each_peer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), opened(3) as [ports, *others]:
        with Serving(ports):
            for other in others:
                for _ in range(2):
                    other.clients["main"]._sockets[0].send_multipart([b"?"])
            counted(ports, "malformed", 4)
    logged = sorted(record.getMessage().partition(" (")[0] for record in caplog.records)
    assert logged == [f"refused from rank {rank}: malformed" for rank in (1, 2)]
