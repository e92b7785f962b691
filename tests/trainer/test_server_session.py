"""Tests the cleanup of a server session after errors at its start, in training and at its end."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.traffic import Traffic
from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.strategies.server_session import ServerSession
from tests.distributed.port_ranks import opened
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer

_CLOSE = ServerSession.close


def _session(ports: Ports, build: Any) -> ServerSession:
    return ServerSession(
        ports, build, rank=0, world_size=1, timeout_s=60.0, traffic=Traffic(), world_tier="group"
    )


def test_ports_are_closed_when_the_engine_cannot_be_made() -> None:
    with opened(1) as [ports], mock.patch.object(ports, "close", wraps=ports.close) as close:
        with pytest.raises(RuntimeError, match="no replica"):
            _session(ports, mock.Mock(side_effect=RuntimeError("no replica")))
        close.assert_called_once()


def test_server_loop_ends_before_its_sockets_when_the_last_barrier_fails() -> None:
    """The barrier fails when a host dies after the last rendezvous."""
    served: list[bool] = []
    with opened(1) as [ports]:
        session = _session(ports, lambda ports, client: mock.Mock(handlers=[]))
        thread, close = session._server_loop._thread, ports.close

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


class _FailsOnce(Net):
    failed = False

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        if not self.failed:
            self.failed = True
            raise ValueError("the user's own mistake")
        return super().training_step(batch, batch_idx)


def _fit_again() -> list[bool]:
    model, trainer = _FailsOnce(), make_trainer("psp")
    with mock.patch.object(ServerSession, "close", autospec=True, side_effect=_CLOSE) as close:
        with pytest.raises(ValueError, match="own mistake"):
            trainer.fit(model, loader(2))
        trainer.fit(model, loader(2))
    return [call.kwargs["orderly"] for call in close.call_args_list]


def test_fit_after_a_failed_fit_ends_in_order() -> None:
    """Ranks wait for each other at its end. A rank that left at once would count as lost."""
    assert run_ranks(_fit_again, 2) == [[False, True]] * 2
