"""On a slow connection, a server does not queue an answer while another is queued."""

from __future__ import annotations

import torch

from tests.unit.psp_served import Served

SLOW = bytes([1])


def test_repeated_request_does_not_queue_the_answer_again() -> None:
    served = Served(2)
    served.push(0, 0)
    assert served.push(1, 0) == [(0, 1), (1, 1)]
    served.replies.sending = {SLOW}
    assert served.abstain(1, 0, now=2.0) == []
    assert served.tick(10.0) == []
    served.replies.sending = set()  # the answer was lost with its connection
    assert served.abstain(1, 0, now=12.0) == [(1, 1)]


def test_newer_version_is_sent_after_the_older_one() -> None:
    """Worker 1 has continued without this shard. It gets the newest version, and none between."""
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


def test_answer_that_a_full_queue_refuses_is_sent_later() -> None:
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
