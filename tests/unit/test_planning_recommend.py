"""The recommendation follows from the network, and has reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lightning_hier.planning import Link, Network, Processor, Workload, recommend
from lightning_hier.planning.candidates import ENOUGH, LONG
from lightning_hier.planning.synchronisation import synchronise

LSTM = Workload(parameters=24_300_000, step_s=0.15)
FAST_INSIDE = Link(bytes_per_second=20e9, latency_s=2e-5)


def cluster(mbit_s: float, *, hosts: int = 16, devices: int = 8) -> Network:
    return Network(
        hosts=hosts,
        devices=devices,
        within=FAST_INSIDE,
        between=Link(bytes_per_second=mbit_s * 1e6 / 8, latency_s=1e-4),
        processor=Processor(copy_bytes_per_second=3e11),
    )


def test_ddp_is_recommended_on_a_fast_network() -> None:
    recommended = recommend(LSTM, cluster(400_000, devices=1))
    assert (recommended.strategy, recommended.arguments) == ("ddp", {})
    assert "no other strategy is needed" in recommended.reasons[0]


def test_groups_with_exact_gradients_are_recommended_for_fast_links_inside_hosts() -> None:
    recommended = recommend(LSTM, cluster(1000))
    assert recommended.strategy == "HierarchicalStrategy"
    assert recommended.arguments["group_size"] == 8
    assert recommended.arguments["gradient_sync"] == {
        "class_path": "lightning_hier.AllReduce",
        "init_args": {},
    }
    assert recommended.prediction.efficiency > 0.85
    assert any("compression is not needed" in reason for reason in recommended.reasons)


def test_bmuf_gtc_is_recommended_for_slow_links_inside_hosts() -> None:
    slow_inside = replace(cluster(100), within=Link(bytes_per_second=1e9))
    recommended = recommend(LSTM, slow_inside)
    assert recommended.strategy == "BMUFGTCStrategy"
    assert set(recommended.arguments) >= {"group_size", "density", "block_size"}


def test_every_rank_is_a_worker_if_links_inside_hosts_are_slow() -> None:
    slow = replace(cluster(100), within=Link(bytes_per_second=1e6))
    recommended = recommend(LSTM, slow)
    assert recommended.settings.group_size == 1
    assert any("every rank trains its own model" in reason for reason in recommended.reasons)
    # Sums of float32 models inside a host take most of the time.
    assert any("among the fastest" in reason for reason in recommended.reasons)


INT8: dict[str, Any] = {"across_dtype": "int8"}
INT4: dict[str, Any] = {"across_dtype": "int4"}
LATE: dict[str, Any] = {"fragments": 4}
SPARSE: dict[str, Any] = {"across_dtype": "int4", "across_density": 0.02}


@pytest.mark.parametrize(
    ("optimizer", "mbit_s", "block_sync", "settings"),
    [
        ("sgd_momentum", 10_000, "BMUF", {}),
        ("sgd_momentum", 1000, "BMUF", INT8),
        ("sgd_momentum", 500, "BMUF", INT4),
        ("sgd_momentum", 100, "BMUF", INT4 | LATE),
        ("sgd_momentum", 10, "DiLoCo", SPARSE | LATE),
        ("adam", 15_000, "BMUFAdam", {}),
        ("adam", 2000, "BMUFAdam", INT4 | {"moments_every": 6}),
        ("adam", 500, "DiLoCo", INT4),
        ("adam", 100, "DiLoCo", INT4 | LATE),
        ("adam", 10, "DiLoCo", SPARSE | LATE),
    ],
)
def test_slower_links_get_fewer_bytes_and_longer_delays(
    optimizer: Any, mbit_s: float, block_sync: str, settings: Mapping[str, Any]
) -> None:
    """25 million parameters on four hosts, with steps of 150 ms: within 3% of no communication."""
    work = Workload(parameters=25_000_000, step_s=0.15, optimizer=optimizer)
    recommended = recommend(work, cluster(mbit_s, hosts=4, devices=1))
    assert 1 / recommended.prediction.efficiency - 1 <= ENOUGH * (1 + 1e-9)
    assert recommended.settings.block_size <= LONG
    component = recommended.arguments.get("block_sync")
    name = component["class_path"] if component else recommended.strategy
    own = dict(component["init_args"] if component else recommended.arguments)
    # DDP keeps less than 10% of the speed.
    assert (recommended.arguments.get("warmup_steps") == 0) == (mbit_s <= 500)
    own.pop("warmup_steps", None)
    assert name in (f"lightning_hier.{block_sync}", f"{block_sync}Strategy")
    assert own.items() >= settings.items()
    # Only arguments of the schedule and of the outer optimizer are set otherwise.
    known = {"group_size", "block_size", "overlap", "outer_lr", "outer_momentum"}
    assert own.keys() - settings.keys() <= known
    assert ("overlap" in own) == ("fragments" in own)


def test_a_delay_hides_an_exchange_that_takes_a_fifth_longer_than_predicted() -> None:
    chosen = recommend(LSTM, cluster(20)).settings
    assert chosen.overlap is not True and chosen.overlap > 1
    assert chosen.overlap <= chosen.block_size / chosen.fragments
    in_flight_s = synchronise(LSTM, cluster(20), chosen).in_flight_s
    assert (
        (chosen.overlap - 1) * LSTM.step_s
        < 1.2 * in_flight_s
        <= chosen.overlap * LSTM.step_s * 1.01
    )


@pytest.mark.parametrize("mbit_s", [100, 300, 1000, 10_000])
def test_a_block_is_as_short_as_three_percent_of_its_steps_allow(mbit_s: float) -> None:
    network = cluster(mbit_s, devices=1)
    for own in recommend(LSTM, network, {"overlap": False}).candidates:
        size, cost_s = own.settings.block_size, synchronise(LSTM, network, own.settings).blocking_s
        assert cost_s / (size * LSTM.step_s) <= ENOUGH or size == 400
        assert size == 10 or cost_s / ((size - 1) * LSTM.step_s) > ENOUGH


@pytest.mark.parametrize(("hosts", "sparse"), [(18, True), (24, False)])
def test_sparse_updates_are_recommended_up_to_the_break_even(hosts: int, sparse: bool) -> None:
    """A dense exchange in int4 sends less on more than 20 hosts."""
    recommended = recommend(LSTM, cluster(5, hosts=hosts, devices=1))
    assert recommended.settings.across_dtype == "int4"
    assert (recommended.settings.across_density < 1) == sparse


def test_the_push_period_makes_computing_as_long_as_sending() -> None:
    """T_calc of eq. 7 is N mini-batches on two devices, T_trans of eq. 6 is 2 N_e M / B."""
    network = replace(
        cluster(1000, hosts=4, devices=2), processor=Processor(copy_bytes_per_second=1e18)
    )
    period = recommend(LSTM, network).settings.push_period
    sending_s = 2 * 3 * LSTM.gradient_bytes / 125e6 + 2e-4
    assert LSTM.step_s * period / 2 >= sending_s > LSTM.step_s * (period - 1) / 2


def test_fixed_settings_are_kept() -> None:
    fixed = {"block_size": 77, "group_size": 2, "density": 0.02, "across_dtype": "int8"}
    recommended = recommend(LSTM, cluster(100), {**fixed, "overlap": True})
    assert recommended.strategy == "BMUFGTCStrategy"
    assert recommended.arguments == {**fixed, "overlap": True, "warmup_steps": 0}
    free = recommend(LSTM, cluster(100), fixed)
    late = {"fragments": 4, "overlap": free.settings.overlap}
    assert free.arguments == {**fixed, **late, "warmup_steps": 0}
    assert 1 <= free.settings.overlap <= 77 / 4


def test_moments_overlap_only_on_request() -> None:
    adam = replace(LSTM, optimizer="adam")
    fixed = {"block_sync": "bmuf_adam", "overlap": True}
    assert recommend(adam, cluster(100, devices=1), fixed).settings.overlap is True
    for own in recommend(adam, cluster(10)).candidates:
        assert not (own.settings.moments and own.settings.overlap)
    moments = recommend(adam, cluster(10), {"moments_every": 5})
    assert moments.settings.moments and not moments.settings.overlap
    with pytest.raises(ValueError, match="moments_every=5 needs optimizer='adam', got 'sgd_mom"):
        recommend(LSTM, cluster(10), {"moments_every": 5})
    with pytest.raises(ValueError, match="block_sync=bmuf_adam needs optimizer='adam'"):
        recommend(LSTM, cluster(10), {"block_sync": "bmuf_adam"})


def test_a_density_across_is_an_argument_of_the_component() -> None:
    fixed = {"across_density": 0.02, "across_dtype": "int4"}
    for devices in (1, 8):
        recommended = recommend(LSTM, cluster(100, devices=devices), fixed)
        assert recommended.strategy == "HierarchicalStrategy"
        assert recommended.arguments["group_size"] == devices
        assert recommended.arguments["block_sync"]["init_args"].items() >= fixed.items()


@pytest.mark.parametrize(("mbit_s", "name"), [(2000, "block_momentum"), (500, "outer_momentum")])
@pytest.mark.parametrize("hosts", [4, 16])
def test_momentum_from_the_number_of_groups_is_for_few_of_them(
    mbit_s: float, name: str, hosts: int
) -> None:
    """The default of BMUF-Adam is that momentum, the default of DiLoCo is 0.9."""
    adam = Workload(parameters=25_000_000, step_s=0.15, optimizer="adam")
    arguments = recommend(adam, cluster(mbit_s, hosts=hosts, devices=1)).arguments
    own = arguments["block_sync"]["init_args"] if "block_sync" in arguments else arguments
    few = {"block_momentum": None, "outer_momentum": "auto"}
    many = {"block_momentum": 0.9, "outer_momentum": None}
    assert own.get(name) == (few if hosts < 16 else many)[name]
