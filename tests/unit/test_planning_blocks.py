"""Costs of block synchronisation on a network whose numbers can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict
from lightning_hier.planning.strategies import synchronisation_memory_bytes
from lightning_hier.planning.synchronisation import synchronise

# Four hosts at 100 Mbit/s, whose memory is free. The ring sends 2 * 3/4 of 32 MB: 48 MB in 3.84 s.
FOUR = Network(
    hosts=4,
    devices=1,
    within=Link(bytes_per_second=1e10),
    between=Link(bytes_per_second=12.5e6),
    processor=Processor(copy_bytes_per_second=1e18),
)
WORK = Workload(parameters=8_000_000, step_s=0.1)
MODEL = 32e6
# Health reports take 15 microseconds.
CLOSE = 1e-3


def test_fragments_divide_the_largest_synchronisation_and_the_pause() -> None:
    whole, parts = (synchronise(WORK, FOUR, Settings(fragments=n)) for n in (1, 4))
    assert whole.host_bytes == whole.peak_bytes == 48e6
    assert whole.blocking_s == whole.pause_s == pytest.approx(3.84, rel=CLOSE)
    assert parts.host_bytes == 48e6 and parts.peak_bytes == 12e6
    assert parts.blocking_s == pytest.approx(3.84, rel=CLOSE)
    assert parts.pause_s == pytest.approx(0.96, rel=CLOSE)


@pytest.mark.parametrize(
    ("settings", "step_s", "pause_s"),
    [
        # A fragment takes 9.6 steps: all of it is hidden, or all but six steps.
        ({"block_size": 40, "fragments": 4, "overlap": 10}, 0.1, 0.0),
        ({"block_size": 40, "fragments": 4, "overlap": 6}, 0.1 + 4 * 0.36 / 40, 0.36),
        # The link needs 38.4 steps for each block, for any delay.
        ({"block_size": 20, "fragments": 4, "overlap": True}, 3.84 / 20, 0.46),
        ({"block_size": 20, "overlap": True}, 3.84 / 20, 1.84),
        ({"block_size": 40, "overlap": True}, 0.1, 0.0),
    ],
)
def test_a_delay_hides_what_fits_into_its_steps(
    settings: Any, step_s: float, pause_s: float
) -> None:
    prediction = predict("diloco", WORK, FOUR, Settings(**settings))
    assert prediction.step_s == pytest.approx(step_s, rel=CLOSE)
    assert prediction.pause_s == pytest.approx(pause_s, rel=CLOSE, abs=1e-4)
    assert prediction.host_bytes == pytest.approx(48e6 / settings["block_size"], rel=CLOSE)


def test_a_delay_does_not_hide_the_passes_of_a_codec() -> None:
    """Each host decodes 1 + 1 models, and encodes its model and a quarter: 4.5 copies."""
    network = replace(FOUR, processor=Processor(copy_bytes_per_second=1e9))
    exact, int8 = (
        synchronise(WORK, network, Settings(overlap=20, across_dtype=dtype)).blocking_s
        for dtype in ("same", "int8")
    )
    assert int8 - exact == pytest.approx(4.5 * MODEL / 1e9)


def test_on_one_host_every_group_quantises_and_keeps_errors() -> None:
    slow = Processor(cores=1, copy_bytes_per_second=1e9)
    one = replace(FOUR, hosts=1, devices=4, processor=slow)
    exact, int8 = (Settings(overlap=20, across_dtype=dtype) for dtype in ("same", "int8"))
    cost_s = [synchronise(WORK, one, own).blocking_s for own in (exact, int8)]
    assert cost_s[1] - cost_s[0] == pytest.approx(4 * 4.5 * MODEL / 1e9)
    memory_bytes = [synchronisation_memory_bytes(WORK, one, own) for own in (exact, int8)]
    assert memory_bytes[1] - memory_bytes[0] == 1.25 * MODEL


def test_int4_sends_half_a_byte_for_an_element_and_a_scale_for_128() -> None:
    """Each host sends three rows of a quarter of the elements, and three of sums."""
    row = WORK.parameters / 4 * (1 / 2 + 4 / 128)
    assert synchronise(WORK, FOUR, Settings(across_dtype="int4")).host_bytes == 6 * row


@pytest.mark.parametrize("hosts", [2, 4, 32])
def test_sparse_updates_go_to_every_other_host(hosts: int) -> None:
    """2% of the elements: half a byte, 1/32 for the scale, and two bytes for the position."""
    settings = Settings(across_density=0.02, across_dtype="int4")
    payload = 0.02 * WORK.parameters * (1 / 2 + 1 / 32 + 2)
    cost = synchronise(WORK, replace(FOUR, hosts=hosts), settings)
    assert cost.host_bytes == pytest.approx((hosts - 1) * payload)


def test_moments_that_are_exchanged_in_every_third_block() -> None:
    """Three models, then one and one. The largest synchronisation has three."""
    settings = Settings(block_sync="bmuf_adam", moments_every=3)
    cost = synchronise(WORK, FOUR, settings)
    assert cost.host_bytes == pytest.approx(48e6 * 5 / 3)
    assert cost.peak_bytes == 3 * 48e6
    assert cost.blocking_s == pytest.approx(3.84 * 5 / 3, rel=CLOSE)
    assert cost.pause_s == pytest.approx(3 * 3.84, rel=CLOSE)


def test_moments_are_sent_with_their_fragment() -> None:
    """Three models take 28.8 steps for each of four fragments."""
    settings = Settings(block_sync="bmuf_adam", block_size=120, fragments=4, overlap=29)
    assert predict("bmuf_adam", WORK, FOUR, settings).step_s == pytest.approx(0.1, rel=CLOSE)
    short = replace(settings, overlap=19)
    prediction = predict("bmuf_adam", WORK, FOUR, short)
    assert prediction.step_s == pytest.approx(0.1 + 4 * 0.98 / 120, rel=CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fragments": 51}, "fragments must be at most block_size, got fragments=51 and"),
        ({"overlap": 51}, "overlap must be at most block_size, got overlap=51 and block_size=50"),
        ({"overlap": -1}, "overlap must be a whole number of at least 0"),
        ({"block_size": 0}, "block_size must be a whole number of at least 1, got 0"),
        ({"push_period": 0}, "push_period must be a whole number of at least 1"),
        ({"density": 2.0}, "density must be above 0 and at most 1, got 2.0"),
        ({"across": "all"}, "across must be"),
        ({"moments_every": 0}, "moments_every must be a whole number of at least 1"),
        ({"block_sync": "sgd"}, "block_sync must be"),
    ],
)
def test_settings_that_no_strategy_has_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Settings(**settings)
    assert message in str(raised.value)
