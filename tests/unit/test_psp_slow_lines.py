"""On a slow line nothing is asked for, and nothing is sent, that is on its way already."""

from __future__ import annotations

import torch

from tests.unit.psp_served import Served

SLOW = bytes([1])


def test_worker_that_asks_again_gets_the_answer_that_is_queued() -> None:
    served = Served(2)
    served.push(0, 0)
    assert served.push(1, 0) == [(0, 1), (1, 1)]
    served.replies.sending = {SLOW}
    assert served.abstain(1, 0, now=2.0) == []
    assert served.tick(10.0) == []
    served.replies.sending = set()  # lost with its connection, or it would not ask
    assert served.abstain(1, 0, now=12.0) == [(1, 1)]


def test_newer_version_waits_until_the_older_one_has_left() -> None:
    """Worker 1 goes on without this block; it is sent the newest, and none in between."""
    served = Served(2, c=1)
    assert served.push(1, 0) == [(1, 1)]
    served.replies.sending = {SLOW}
    served.push(1, 1, now=1.0)
    served.push(0, 2, now=1.0)
    assert served.t == 3
    assert served.tick(1.1) == []
    served.replies.sending = set()
    assert served.tick(1.2) == [(1, 3)]
    assert torch.equal(served.sent[0][1].payload, served.values)
    assert served.tick(1.3) == []


def test_answer_that_was_not_taken_is_sent_later() -> None:
    served = Served(2)
    served.full = {1}
    served.push(1, 0)
    assert served.push(0, 0) == [(0, 1)]
    served.full = set()
    assert served.tick(0.1) == [(1, 1)]


def test_final_values_are_queued_once() -> None:
    served = Served(2)
    served.arrive(0, 0)
    assert served.arrive(1, 0) == [(0, 0), (1, 0)]
    served.replies.sending = {SLOW}
    assert served.arrive(1, 0, now=2.0) == []
    served.replies.sending = set()
    assert served.arrive(1, 0, now=6.0) == [(1, 0)]
