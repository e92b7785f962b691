"""Servers whose replies are late, driven message by message, and in a run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.image.late_replies import LateReplies
from examples.image.run_systems import run
from examples.image.runs import Settings
from examples.image.systems import SYSTEMS
from lightning_hier.parameter_server.message import Kind, Message
from tests.ranks import run_ranks
from tests.unit.replying import Replying

TINY = Settings(
    system="all", model_args={"channels": [2]}, ranks=2, late_rank=0, epochs=1, batch_images=64
)


class Line:
    """What a server sends, and when."""

    def __init__(self, share: float, seconds: float = 2.0, seed: int = 0) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, Kind, int]] = []
        self.replies = LateReplies(
            Replying(self._note),
            share=share,
            seconds=seconds,
            draw=np.random.default_rng(seed),
            clock=lambda: self.now,
        )

    def _note(self, address: bytes, message: Message) -> bool:
        self.sent.append((self.now, message.kind, message.timestamp))
        return True


def test_only_blocks_are_held_and_for_the_delay() -> None:
    line = Line(share=1.0)
    assert line.replies.deadline() == math.inf
    line.replies.send(b"", Message(Kind.BLOCK, timestamp=1))
    line.now = 0.5
    line.replies.send(b"", Message(Kind.BLOCK, timestamp=2))
    line.replies.send(b"", Message(Kind.FINAL, timestamp=3))
    assert line.sent == [(0.5, Kind.FINAL, 3)]
    assert line.replies.deadline() == 2.0
    line.now = 2.0
    line.replies.tick(line.now)
    assert line.sent[1:] == [(2.0, Kind.BLOCK, 1)]
    assert line.replies.deadline() == 2.5
    line.now = 9.0
    line.replies.tick(line.now)
    assert line.sent[2:] == [(9.0, Kind.BLOCK, 2)]
    assert line.replies.deadline() == math.inf
    assert (line.replies.replies, line.replies.late) == (2, 2)


@given(share=st.floats(0, 1), seed=st.integers(0, 99), count=st.integers(0, 60))
def test_every_reply_is_sent_once(share: float, seed: int, count: int) -> None:
    line = Line(share, seed=seed)
    for timestamp in range(count):
        line.now = float(timestamp)
        line.replies.tick(line.now)
        line.replies.send(b"", Message(Kind.BLOCK, timestamp=timestamp))
    for _ in range(2):
        line.now += 1.0
        line.replies.tick(line.now)
    assert sorted(timestamp for _, _, timestamp in line.sent) == list(range(count))
    # One that is held is passed by those that are not, and by nothing for longer than its delay.
    assert all(0.0 <= when - timestamp <= 2.0 for when, _, timestamp in line.sent)


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"share": -0.1}, {"share": 0.5, "seconds": -1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Line(**wrong)


def test_workers_wait_for_late_replies() -> None:
    """A ratio within one run: every step of all workers waits for a reply that is held."""
    late = replace(TINY, late_reply_share=1.0, late_reply_seconds=0.15)
    prompt, _ = run_ranks(run, 2, TINY)
    held, _ = run_ranks(run, 2, late)
    assert prompt.of_ranks("replies") == [0.0, 0.0]
    assert held.of_ranks("late_replies") == held.of_ranks("replies") == [20.0, 20.0]
    assert min(held.of_ranks("median_step_s")) >= 0.15
    assert held.curve[-1][1] == prompt.curve[-1][1]


def test_a_system_without_servers_has_no_late_replies() -> None:
    with pytest.raises(ValueError, match="synchronous SGD has no servers"):
        SYSTEMS["all_reduce"].strategy(late_share=0.1)
