"""A worker whose messages are lost, and whose servers die or wait."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message, missing_report
from lightning_hier.parameter_server.ports import Received
from tests.unit.psp_one_worker import Harness


def test_successor_is_told_what_the_worker_holds_and_asked_what_the_dead_was() -> None:
    h = Harness()
    h.push()
    h.block(0, 1, 1.0)
    h.worker.handle(Received(1, b"", Message(Kind.BLOCK, 1, 1, {}, torch.full((2,), 2.0))), 0.0)
    assert h.gone(2) == [(3, Kind.HOLD, 2, 0), (3, Kind.PUSH, 2, 0)]
    assert h.gone(1) == [(3, Kind.HOLD, 1, 1)]
    hold = h.sent[0][1]
    assert torch.equal(hold.payload, torch.full((2,), 2.0))
    assert h.gone(3) == [
        (0, Kind.HOLD, 1, 1), (0, Kind.HOLD, 2, 0), (0, Kind.PUSH, 2, 0),
        (0, Kind.HOLD, 3, 0), (0, Kind.PUSH, 3, 0),
    ]  # fmt: skip


def test_words_of_a_rank_that_serves_no_more_are_passed_over() -> None:
    """The successor goes on from what this worker has told it."""
    h = Harness(b=0.25)
    h.push()
    h.gone(2)
    assert not h.block(2, 1, 9.0, sender=2)
    assert h.block(2, 1, 3.0, sender=3)
    h.worker.pull()
    assert h.values()[2] == 3.0


def test_a_server_names_the_worker_that_it_waits_for() -> None:
    h = Harness()
    h.push()
    with pytest.raises(PeerError, match="rank 1 has waited too long for gradients, for ranks 2, 3"):
        h.hear(1, missing_report(1, 0, [3, 2], "for gradients"))


def test_missing_names_the_ranks_that_have_not_answered() -> None:
    h = Harness()
    h.push()
    h.block(1, 1)
    assert "ranks 0, 2, 3" in h.worker.missing()
    h.worker.arrive(0.0)
    h.final(0, 1, 0.0)
    assert "ranks 1, 2, 3" in h.worker.missing()
