"""Bytes, seconds and numbers of collectives are summed by tier and kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from lightning_hier.comm.traffic import Count, Traffic


def _some_traffic() -> Traffic:
    traffic = Traffic()
    traffic.add("group", "gradients", payload_bytes=100.4, seconds=0.5)
    traffic.add("group", "gradients", payload_bytes=50, seconds=0.25)
    traffic.add("group", "gradient_counts", payload_bytes=8, seconds=0.25)
    traffic.add("across", "models", payload_bytes=1000, seconds=2.0)
    return traffic


def test_counts_add_up_by_tier_and_kind() -> None:
    traffic = _some_traffic()
    assert traffic.of("group", "gradients") == Count(150, 0.75, 2)
    assert traffic.total("group") == Count(158, 1.0, 3)
    assert traffic.total("across") == Count(1000, 2.0, 1)


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
