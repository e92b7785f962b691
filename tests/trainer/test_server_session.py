"""What a session leaves behind when something goes wrong at its ends."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from lightning_hier.comm.roll_call import PeerError
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.ports import Ports
from lightning_hier.strategies.server_session import ServerSession
from tests.distributed.port_ranks import opened


def _session(ports: Ports, build: Any) -> ServerSession:
    return ServerSession(
        ports,
        build,
        rank=0,
        world_size=1,
        timeout_s=60.0,
        traffic=Traffic(),
        world_tier="group",
    )


def test_ports_are_closed_when_the_engine_cannot_be_made() -> None:
    with opened(1) as [ports], mock.patch.object(ports, "close", wraps=ports.close) as close:
        with pytest.raises(RuntimeError, match="no replica"):
            _session(ports, mock.Mock(side_effect=RuntimeError("no replica")))
        close.assert_called_once()


def test_servant_ends_before_its_sockets_when_the_last_barrier_fails() -> None:
    """As when a host dies between the last rendezvous and the barrier."""
    served: list[bool] = []
    with opened(1) as [ports]:
        session = _session(ports, lambda ports, client: mock.Mock(duties=[]))
        thread, close = session._servant._thread, ports.close

        def note_and_close() -> None:
            served.append(thread.is_alive())
            close()

        session.start(torch.nn.Linear(1, 1))
        assert thread.is_alive()
        session.collectives = mock.Mock(barrier=mock.Mock(side_effect=PeerError("rank 1")))
        with (
            mock.patch.object(ports, "close", note_and_close),
            pytest.raises(PeerError, match="rank 1"),
        ):
            session.close(orderly=True)
    assert served == [False]
