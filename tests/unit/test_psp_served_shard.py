"""Server side of PSP-SGD (Algorithm 1): used and dropped gradients, rounds, and answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind
from tests.unit.psp_served import Served


def test_c_counts_workers_and_d_counts_gradients() -> None:
    """Worker 0 has continued without this shard, and pushes two gradients to it."""
    served = Served(3, c=2)
    assert served.push(0, 0) == []
    assert served.push(0, 1) == []
    assert served.push(1, 0) == [(0, 2), (1, 2)]
    assert torch.equal(served.values, torch.full((5,), 3.0, dtype=torch.float64))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_gradients_count_as_abstaining(value: float) -> None:
    served = Served(2, make=lambda own: optim.SGD(own, lr=1.0, momentum=0.9))
    gradient = torch.full((5,), -1.0, dtype=torch.float64)
    gradient[3] = value
    served.push(0, 0, gradient)
    assert served.push(1, 0) == [(0, 1), (1, 1)]
    assert torch.equal(served.values, torch.ones(5, dtype=torch.float64))
    assert served.counts.nonfinite == 1


def test_update_that_overflows_is_undone_with_its_state() -> None:
    served = Served(1, dtype=torch.float32, make=lambda own: optim.SGD(own, lr=10.0, momentum=0.9))
    served.push(0, 0, -1.0)
    good = served.values.clone()
    served.push(0, 1, -3e38)
    assert served.t == 2
    assert torch.equal(served.values, good)
    assert served.shard.values.snapshot()[1] == {}
    served.push(0, 2, -1.0)
    torch.testing.assert_close(served.values, good + 10.0)
    assert served.counts.nonfinite == 1


def test_half_precision_is_summed_in_float32() -> None:
    served = Served(4, dtype=torch.float16, linear_scaling=False)
    for worker in range(4):
        served.push(worker, 0, -40000.0)
    assert torch.equal(served.values, torch.full((5,), 40000.0, dtype=torch.float16))


def test_a_gradient_is_not_changed() -> None:
    """Its memory may belong to a frame, or to the worker that pushed it."""
    served = Served(2)
    pushed = [torch.full((5,), -1.0, dtype=torch.float64) for _ in range(3)]
    served.push(0, 0, pushed[0])
    served.push(0, 1, pushed[1])
    served.push(1, 1, pushed[2])
    assert all(torch.equal(one, torch.full_like(one, -1.0)) for one in pushed)


def test_rates_are_those_of_the_worker_with_most_steps() -> None:
    served = Served(2, linear_scaling=False)
    served.push(0, 0, lr=2.0, steps=5)
    served.push(1, 0, lr=8.0, steps=3)
    assert torch.equal(served.values, torch.full((5,), 2.0, dtype=torch.float64))
    served.push(0, 1, lr=4.0, steps=4)  # an old rate of a worker that has made 5 steps
    served.push(1, 1, lr=8.0, steps=4)
    assert torch.equal(served.values, torch.full((5,), 4.0, dtype=torch.float64))


def test_parameter_without_gradient_on_any_worker_does_not_change() -> None:
    served = Served(2, make=lambda own: optim.SGD(own, lr=1.0, weight_decay=0.25))
    for worker in range(2):
        served.push(worker, 0)
    start = served.values.clone()
    served.push(0, 1, absent=[1])
    served.push(1, 1, absent=[0, 1])
    assert torch.equal(served.values[3:], start[3:])
    assert not torch.equal(served.values[:3], start[:3])


def test_wait_that_is_too_long_names_the_missing_workers() -> None:
    served = Served(3, timeout_s=10.0)
    served.push(0, 0, now=1.0)
    served.push(2, 0, now=2.0)
    assert served.tick(10.9) == []
    with pytest.raises(PeerError, match="waited too long for gradients, for rank 1: see the log"):
        served.tick(11.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "abstain", "arrive"]), st.integers(0, 2), st.integers(0, 9)
        ),
        max_size=40,
    ),
    st.sampled_from([1, 2, "all"]),
)
def test_any_messages_in_any_order(script: list[tuple[str, int, int]], c: Any) -> None:
    """Timestamps never decrease, and every gradient is used, dropped, or in the round."""
    served, pushed, before = Served(3, c=c), 0, 0
    for action, worker, timestamp in script:
        if action == "arrive":
            served.arrive(worker, timestamp)
        else:
            pushed += action == "push"
            getattr(served, action)(worker, timestamp)
        assert served.t >= before
        before = served.t
        assert served.counts.used + served.counts.dropped == pushed
        assert served.values.isfinite().all()
        assert all(m.timestamp >= 1 or m.kind == Kind.FINAL for _, m in served.sent)


SLOW = bytes([1])


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
