"""Server side of a PSP rendezvous: all workers get the same final values."""

from __future__ import annotations

import torch

from lightning_hier.parameter_server.message import Kind
from tests.unit.psp_served import Served


def test_all_workers_get_the_same_values_after_the_last_arrival() -> None:
    served = Served(3, c=1)
    served.push(0, 0)
    assert served.arrive(0, 1) == []
    assert served.arrive(2, 0) == []
    assert served.arrive(1, 4) == [(0, 4), (1, 4), (2, 4)]
    assert {message.kind for _, message in served.sent} == {Kind.FINAL}
    assert all(message.facts == {"number": 1} for _, message in served.sent)
    assert all(torch.equal(message.payload, served.values) for _, message in served.sent)


def test_gradients_of_an_unfinished_round_are_applied() -> None:
    """Worker 0 has pushed, and has continued without this shard."""
    served = Served(3, c=3)
    served.push(0, 0)
    for worker in range(3):
        served.arrive(worker, 1)
    assert torch.equal(served.values, torch.ones(5, dtype=torch.float64))
    assert served.t == 1


def test_rounds_continue_without_workers_that_have_arrived() -> None:
    served = Served(3)
    served.arrive(0, 0)
    assert served.push(1, 0) == []
    assert served.push(2, 0) == [(1, 1), (2, 1)]
    assert served.arrive(2, 1) == []
    assert served.push(1, 1) == [(1, 2)]


def test_gradients_of_workers_that_have_arrived_count_for_c() -> None:
    served = Served(4, c=3)
    served.push(0, 0)
    served.push(1, 0)
    served.arrive(0, 1)
    served.arrive(1, 1)
    assert served.push(2, 0) == [(2, 1)]
    assert torch.equal(served.values, torch.full((5,), 3.0, dtype=torch.float64))


def test_push_after_the_arrival_of_its_worker_is_used_and_not_answered() -> None:
    served = Served(2)
    served.arrive(0, 1)
    assert served.push(0, 0) == []
    assert served.arrive(1, 1) == [(0, 1), (1, 1)]
    assert torch.equal(served.values, torch.ones(5, dtype=torch.float64))


def test_answer_is_kept_until_all_workers_have_continued() -> None:
    served = Served(2)
    served.arrive(0, 0)
    served.arrive(1, 0)
    served.push(0, 0, final=1)
    assert served.arrive(1, 0) == [(1, 0)]  # its answer was lost
    served.push(1, 0, final=1)
    assert served.arrive(1, 0) == []
