"""Bytes, seconds and numbers of collectives that several threads count at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from lightning_hier.comm.traffic import Count, Traffic


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_nothing_is_lost_when_several_threads_count() -> None:
    """Overlapped collectives are counted by the threads that complete them."""
    traffic = Traffic()

    def count() -> None:
        for _ in range(20_000):
            traffic.add("group", "gradients", payload_bytes=3, seconds=0.5)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traffic.of("group", "gradients") == Count(240_000, 40_000.0, 80_000)
