"""Costs that can be computed by hand, and properties of predictions on any network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from lightning_hier.planning import (
    Link,
    Network,
    Processor,
    Settings,
    Workload,
    predict,
    predict_all,
)
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.strategies import synchronisation_memory_bytes
from lightning_hier.planning.synchronisation import synchronise

ROUNDING = 1 + 1e-9
FREE = 1e18

workloads = st.builds(
    Workload,
    parameters=st.integers(1_000, 10**9),
    step_s=st.floats(1e-3, 10),
    optimizer=st.sampled_from(["sgd", "sgd_momentum", "adam"]),
    buffers=st.integers(0, 10_000),
    on_cores=st.booleans(),
)
processors = st.builds(
    Processor,
    cores=st.none() | st.integers(1, 8),
    copy_bytes_per_second=st.floats(1e9, 1e12),
    socket_bytes_per_second=st.none() | st.floats(1e8, 1e10),
)


@st.composite
def networks(draw: st.DrawFn, least_hosts: int = 1) -> Network:
    """Links inside a host are no slower than those between hosts."""
    between = draw(st.floats(1e6, 1e11))
    latency_s = draw(st.floats(0, 0.1))
    return Network(
        hosts=draw(st.integers(least_hosts, 64)),
        devices=draw(st.sampled_from([1, 2, 4, 8])),
        within=Link(
            bytes_per_second=between * draw(st.floats(1, 1e3)),
            latency_s=latency_s * draw(st.floats(0, 1)),
        ),
        between=Link(bytes_per_second=between, latency_s=latency_s),
        processor=draw(processors),
    )


@st.composite
def settings_for(draw: st.DrawFn, network: Network) -> Settings:
    """Settings with groups that fit the hosts."""
    sizes = [n for n in (1, 2, 4, 8) if network.devices % n == 0]
    block_size = draw(st.integers(1, 400))
    return Settings(
        block_size=block_size,
        group_size=draw(st.sampled_from(sizes)),
        density=draw(st.floats(1e-5, 0.5)),
        push_period=draw(st.integers(1, 100)),
        across_dtype=draw(st.sampled_from(["same", "bfloat16", "int8", "int4"])),
        across_density=draw(st.sampled_from([1.0, 1.0, 0.02])),
        fragments=draw(st.integers(1, min(block_size, 8))),
        overlap=draw(st.booleans() | st.integers(0, block_size)),
        moments_every=draw(st.integers(1, 6)),
    )


@st.composite
def plans(draw: st.DrawFn, least_hosts: int = 1) -> tuple[Workload, Network, Settings]:
    network = draw(networks(least_hosts))
    return draw(workloads), network, draw(settings_for(network))


def no_slower(
    plan: tuple[Workload, Network, Settings], better: Network, *, but: Sequence[str] = ()
) -> None:
    """Assert that no strategy, except those in ``but``, has slower steps on the better network.

    Two-stage ASGD is skipped where cores both compute and send. On a slower network it pushes less
    often, so that more of the cores is left for steps.
    """
    workload, network, own = plan
    before = predict_all(workload, network, own)
    after = predict_all(workload, better, own)
    for one, other in zip(before, after, strict=True):
        if workload.on_cores and one.strategy == "two_stage_asgd":
            continue
        if one.strategy in but:
            continue
        assert other.step_s <= one.step_s * ROUNDING, one.strategy


@given(plans(), st.floats(1, 1e4))
def test_a_faster_link_costs_nothing(
    plan: tuple[Workload, Network, Settings], factor: float
) -> None:
    network = plan[1]
    link = replace(network.between, bytes_per_second=factor * network.between.bytes_per_second)
    no_slower(plan, replace(network, between=link))
    inside = replace(network.within, bytes_per_second=factor * network.within.bytes_per_second)
    no_slower(plan, replace(network, within=inside))


@given(plans(), st.floats(0, 1))
def test_less_latency_costs_nothing(
    plan: tuple[Workload, Network, Settings], factor: float
) -> None:
    network = plan[1]
    between = replace(network.between, latency_s=factor * network.between.latency_s)
    within = replace(network.within, latency_s=factor * network.within.latency_s)
    no_slower(plan, replace(network, between=between, within=within))


@given(plans(least_hosts=2), st.integers(2, 20))
def test_more_hosts_are_no_more_efficient(
    plan: tuple[Workload, Network, Settings], factor: int
) -> None:
    """There are at least two hosts, because messages inside one host take other links.

    Quantisation is left out: it rounds a shard up to whole groups of 512 elements, so that four
    hosts may send fewer bytes than three. PSP is left out: more servers divide the update of the
    optimizer, which can save more time than the additional messages take.
    """
    workload, network, settings = plan
    settings = replace(settings, across_dtype="same")
    larger = replace(network, hosts=factor * network.hosts)
    no_slower((workload, larger, settings), network, but=["psp"])


@given(workloads, networks(), st.integers(1, 400), st.sampled_from(["same", "int8", "int4"]))
def test_overlap_is_never_slower_where_memory_is_free(
    workload: Workload, network: Network, block_size: int, across_dtype: str
) -> None:
    """Otherwise overlap can be slower, because a late mean takes additional passes."""
    free = Processor(copy_bytes_per_second=FREE)
    network = replace(network, processor=free)
    plain = Settings(block_size=block_size, across_dtype=across_dtype)
    some = replace(plain, overlap=(block_size + 1) // 2)
    late = replace(plain, overlap=True)
    one, two, other = (predict("bmuf", workload, network, own) for own in (plain, some, late))
    assert other.step_s <= two.step_s * ROUNDING and two.step_s <= one.step_s * ROUNDING


@given(plans(least_hosts=2), st.integers(2, 8))
def test_fragments_pause_no_longer_and_send_as_much(
    plan: tuple[Workload, Network, Settings], fragments: int
) -> None:
    """The bytes of a synchronisation are equal up to the rounding of shards."""
    workload, network, settings = plan
    whole = replace(settings, block_size=400, fragments=1, overlap=False, across_dtype="same")
    whole = replace(whole, across_density=1.0)
    one, parts = (
        predict("diloco", workload, network, own)
        for own in (whole, replace(whole, fragments=fragments))
    )
    assert parts.pause_s <= one.pause_s * ROUNDING and parts.step_s >= one.step_s / ROUNDING
    rounding = 2 * (fragments * network.ranks) * workload.element_bytes
    assert parts.peak_bytes * fragments == pytest.approx(one.peak_bytes, abs=2 * rounding)


@given(workloads, st.sampled_from([1, 2, 4, 8]))
def test_without_slow_links_one_host_loses_nothing(workload: Workload, devices: int) -> None:
    link = Link(bytes_per_second=FREE)
    free = Processor(copy_bytes_per_second=FREE)
    network = Network(hosts=1, devices=devices, within=link, between=link, processor=free)
    for prediction in predict_all(workload, network, Settings()):
        assert prediction.efficiency == pytest.approx(1, abs=1e-3), prediction.strategy
        assert prediction.host_bytes == 0


@given(plans())
@examples(max_examples=50)
def test_predictions_are_consistent(plan: tuple[Workload, Network, Settings]) -> None:
    workload, network, settings = plan
    for prediction in predict_all(workload, network, settings):
        assert 0 < prediction.efficiency <= ROUNDING
        assert prediction.speedup == pytest.approx(prediction.ranks * prediction.efficiency)
        ranks = prediction.settings["group_size"] if prediction.strategy.endswith("_fsdp") else 1
        assert prediction.memory_bytes >= 2 * workload.gradient_bytes / ranks
        assert (prediction.host_bytes > 0) == (network.hosts > 1)


def test_groups_must_fit_the_hosts() -> None:
    link = Link(bytes_per_second=1e9)
    network = Network(hosts=6, devices=4, within=link, between=link)
    with pytest.raises(ValueError, match="sizes that do: 1, 2, 4, 8, 12, 24"):
        Layout(network, Settings(group_size=3))
    assert Layout(network, Settings(group_size=8)).group.hosts == 2
    assert Layout(network, Settings(group_size=2)).models == 12


def test_unknown_strategies_are_refused() -> None:
    link = Link(bytes_per_second=1e9)
    network = Network(hosts=2, devices=1, within=link, between=link)
    with pytest.raises(ValueError, match="must be one of ddp, gtc, .* got 'bmof'"):
        predict("bmof", Workload(parameters=1, step_s=1.0), network)


def test_one_group_with_exact_gradients_costs_as_much_as_ddp() -> None:
    link = Link(bytes_per_second=1e8, latency_s=1e-4)
    network = Network(hosts=4, devices=2, within=link, between=link)
    workload = Workload(parameters=10**7, step_s=0.1)
    ddp = predict("ddp", workload, network)
    one = predict("hierarchical", workload, network, Settings(group_size=8, density=None))
    assert one.step_s == ddp.step_s and one.host_bytes == ddp.host_bytes


@pytest.mark.parametrize(("on_cores", "step_s"), [(False, 6.0), (True, 7.0)])
def test_fsdp_gathers_twice_and_reduces_once_during_the_step(on_cores: bool, step_s: float) -> None:
    """Each of two ranks sends half of 4 MB three times over 1 MB/s."""
    link, free = Link(bytes_per_second=1e6), Processor(copy_bytes_per_second=FREE)
    network = Network(hosts=1, devices=2, within=link, between=link, processor=free)
    workload = Workload(parameters=10**6, step_s=1.0, on_cores=on_cores)
    prediction = predict("diloco_fsdp", workload, network)
    assert prediction.step_s == pytest.approx(step_s) and prediction.memory_bytes == 1.5 * 4e6


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
