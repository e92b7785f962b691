"""Latency and bandwidth of a link are estimated from times of all-reduces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.planning.probe import fit_ring

SIZES = (4096, 65536, 1 << 20, 1 << 23)


@given(latency_s=st.floats(1e-6, 0.1), rate=st.floats(1e6, 1e10), ranks=st.integers(2, 64))
def test_latency_and_bandwidth_are_recovered(latency_s: float, rate: float, ranks: int) -> None:
    passed = 2 * (ranks - 1)
    link = fit_ring(
        ranks, {size: passed * latency_s + passed / ranks * size / rate for size in SIZES}
    )
    # A difference of times is only as exact as the times, and most of these may be latency.
    assert link.bytes_per_second == pytest.approx(rate, rel=1e-4)
    assert link.latency_s == pytest.approx(latency_s, rel=1e-4, abs=1e-4 * SIZES[0] / rate)


@given(bucket=st.integers(0, 1 << 20))
def test_token_bucket_does_not_change_the_bandwidth(bucket: int) -> None:
    """A token bucket passes its content at once."""
    link = fit_ring(2, {size: 2e-4 + max(size - bucket, 0) / 1e8 for size in SIZES})
    assert link.bytes_per_second == pytest.approx(1e8)
    assert 0 <= link.latency_s <= 1e-4 + 1e-12


def test_delays_of_small_messages_change_only_the_latency() -> None:
    link = fit_ring(2, {size: 2e-4 * (20 if size < 1 << 20 else 1) + size / 1e8 for size in SIZES})
    assert link.bytes_per_second == pytest.approx(1e8)
    assert link.latency_s == pytest.approx(20e-4)


def test_times_that_do_not_grow_give_a_lower_bound_of_the_bandwidth() -> None:
    assert fit_ring(2, {4096: 0.2, 8192: 0.1}).bytes_per_second == pytest.approx(81920)
