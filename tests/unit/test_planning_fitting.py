"""Links are found again from what they make of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.algorithms.planning.fitting import Timing, fit_link, ring_timing

SIZES = (4096, 65536, 1 << 20, 1 << 23)


@given(latency_s=st.floats(1e-6, 0.1), rate=st.floats(1e6, 1e10), ranks=st.integers(2, 64))
def test_link_is_found_again(latency_s: float, rate: float, ranks: int) -> None:
    sends = [Timing(nbytes=size, seconds=latency_s + size / rate) for size in SIZES]
    passed = 2 * (ranks - 1)
    rings = [
        ring_timing(ranks, size, passed * latency_s + passed / ranks * size / rate)
        for size in SIZES
    ]
    for found in (fit_link(sends), fit_link(rings)):
        # The smallest message tells latency to a part of itself only, where it is nearly all bytes.
        assert found.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-9 * SIZES[0] / rate)
        assert found.bytes_per_second == pytest.approx(rate, rel=1e-3)


def test_noise_of_small_messages_does_not_move_the_bandwidth() -> None:
    noisy = [Timing(nbytes=size, seconds=1.3e-4 + size / 1e8) for size in SIZES]
    noisy += [Timing(nbytes=SIZES[0], seconds=2.6e-4)]
    assert fit_link(noisy).bytes_per_second == pytest.approx(1e8, rel=0.05)


def test_latency_is_never_below_zero() -> None:
    # A link that lets through the first bytes at once, as a token bucket does.
    burst = [Timing(nbytes=n, seconds=max(n - 50_000, 100) / 1e8) for n in SIZES]
    found = fit_link(burst)
    assert found.latency_s == 0.0 and found.bytes_per_second > 0


@pytest.mark.parametrize("sizes", [(), (4096,), (4096, 4096)])
def test_one_size_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit_link([Timing(nbytes=size, seconds=0.1) for size in sizes])


def test_large_messages_that_take_no_longer_tell_what_is_carried_at_least() -> None:
    found = fit_link([Timing(nbytes=4096, seconds=0.2), Timing(nbytes=8192, seconds=0.1)])
    assert (found.latency_s, found.bytes_per_second) == (0.1, 81920)


def test_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds must be a finite number above 0, got 0.0"):
        Timing(nbytes=1, seconds=0.0)
