"""On a slow line nothing is asked for, and nothing is sent, that is on its way already."""

from __future__ import annotations

import math

import torch

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.requests import Request
from tests.unit.lone_channel import LoneChannel
from tests.unit.psp_one_worker import Harness, every
from tests.unit.psp_served import Served

SLOW = bytes([1])


def test_worker_that_asks_again_gets_the_answer_that_is_queued() -> None:
    served = Served(2)
    served.push(0, 0)
    assert served.push(1, 0) == [(0, 1), (1, 1)]
    served.replies.sending = {SLOW}
    assert served.abstain(1, 0, now=2.0) == []
    assert served.tick(10.0) == []
    assert served.shard.deadline() == math.inf
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
    due = served.shard.deadline()
    assert 1.0 < due < 1.5
    assert served.tick(due) == []
    served.replies.sending = set()
    due = served.shard.deadline()
    assert served.tick(due) == [(1, 3)]
    assert torch.equal(served.sent[0][1].payload, served.values)
    assert served.shard.deadline() == math.inf


def test_answer_that_was_not_taken_is_sent_later() -> None:
    served = Served(2)
    served.full = {1}
    served.push(1, 0)
    assert served.push(0, 0) == [(0, 1)]
    served.full = set()
    due = served.shard.deadline()
    assert due < 1.0
    assert served.tick(due) == [(1, 1)]


def test_worker_for_which_an_answer_is_there_does_not_hear_of_missing_ones() -> None:
    served = Served(3, c=2, limit_s=60.0)
    served.full = {1}
    served.push(0, 0)
    served.push(1, 0)
    served.abstain(0, 1, now=1.0)
    assert served.tick(61.0) == [(0, 1)]
    assert served.sent[0][1].facts == {"missing": [1, 2], "waiting": "for gradients"}


def test_final_values_are_queued_once() -> None:
    served = Served(2)
    served.arrive(0, 0)
    assert served.arrive(1, 0) == [(0, 0), (1, 0)]
    served.replies.sending = {SLOW}
    assert served.arrive(1, 0, now=2.0) == []
    served.replies.sending = set()
    assert served.arrive(1, 0, now=6.0) == [(1, 0)]


def test_worker_whose_answers_take_long_asks_again_later() -> None:
    h = Harness(retry_s=2.0)
    h.push()
    h.now = 6.0
    for number in range(4):
        h.block(number, 1)
    h.worker.pull(0)
    h.push()
    assert h.tick(23.9) == []
    assert h.tick(24.0) == every(Kind.ABSTAIN, 1)


def test_request_that_could_not_be_sent_is_not_late_before_it_is() -> None:
    h = Harness(retry_s=2.0)
    h.closed = {3}
    h.push()
    h.closed = set()
    assert (3, Kind.PUSH, 3, 0) in h.tick(10.0)
    assert (3, Kind.ABSTAIN, 3, 0) not in h.tick(11.9)
    assert (3, Kind.ABSTAIN, 3, 0) in h.tick(12.0)


def test_intervals_between_retries_grow_to_a_limit_and_follow_the_last_answer() -> None:
    sent: list[float] = []
    now = 0.0

    def send(rank: int, message: Message) -> bool:
        sent.append(now)
        return True

    def repeats(begin: float, *times: float) -> list[float]:
        nonlocal now
        sent.clear()
        now = begin
        request.put(Message(Kind.ABSTAIN), begin)
        for now in times:
            request.tick(now)
        return sent[1:]

    channel = LoneChannel(send)
    request = Request(channel, lambda gone: 0, retry_s=2.0)
    request.tick(1e9)  # there is no request
    assert repeats(0.0, *range(200)) == [2, 6, 14, 30, 60, 90, 120, 150, 180]
    request.acknowledge(200.0)
    assert repeats(200.0, 229.0, 230.0) == [230.0]
    request.acknowledge(200.5)
    assert repeats(300.0, 301.9, 302.0) == [302.0]
    assert request.retries == 11 and request.waited_s(303.0) == 3.0
    channel.sending.add(0)  # what was sent is still queued
    sent.clear()
    for now in range(304, 400):
        request.tick(now)
    assert sent == []
