"""Malformed messages of ranks are dropped and counted, and the next message is received."""

from __future__ import annotations

import logging

import pytest

from lightning_hier.parameter_server.message import Kind, Message
from tests.distributed.port_ranks import Serving, counted, opened
from tests.waiting import wait_until


def test_malformed_messages_of_ranks_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Each reason is logged once for each peer. tests/unit/test_messages.py tests all faults."""
    with (
        caplog.at_level(logging.WARNING),
        opened(3) as [ports, *others],
        Serving(ports) as serving,
    ):
        for other in others:
            for frames in ([b""], [b"[1, 0", b""]):
                other.clients["main"]._sockets[0].send_multipart(frames)
        counted(ports, "malformed", 4)
        assert others[0].clients["main"].send(0, Message(Kind.ARRIVE))
        wait_until(lambda: serving.received, "the next message")
        assert [r.message.kind for r in serving.received] == [Kind.ARRIVE]
        assert ports.refusals() == {"malformed": 4}
    logged = sorted(record.getMessage().partition(" (")[0] for record in caplog.records)
    assert logged == [f"refused from rank {rank}: malformed" for rank in (1, 2)]
