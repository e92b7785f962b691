"""What is recommended follows from the network, and says why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lightning_hier.planning import Link, Network, Processor, Settings, Workload, recommend
from lightning_hier.planning.servers import cluster_of
from lightning_hier.planning.synchronisation import sparse_break_even, synchronise

LSTM = Workload(parameters=24_300_000, step_s=0.15, tensors=22)
FAST_INSIDE = Link(bytes_per_second=20e9, latency_s=2e-5)


def cluster(mbit_s: float, *, hosts: int = 16, devices: int = 8) -> Network:
    return Network(
        hosts=hosts,
        devices=devices,
        within=FAST_INSIDE,
        between=Link(bytes_per_second=mbit_s * 1e6 / 8, latency_s=1e-4),
        processor=Processor(copy_bytes_per_second=3e11),
    )


def test_a_fast_network_needs_nothing_else_than_ddp() -> None:
    found = recommend(LSTM, cluster(400_000, devices=1))
    assert (found.strategy, found.arguments) == ("ddp", {})
    assert "no other strategy is needed" in found.reasons[0]


def test_fast_links_inside_hosts_make_groups_with_exact_gradients() -> None:
    found = recommend(LSTM, cluster(1000))
    assert found.strategy == "HierarchicalStrategy"
    assert found.arguments["group_size"] == 8
    assert found.arguments["gradient_sync"] == {
        "class_path": "lightning_hier.AllReduce",
        "init_args": {},
    }
    assert found.prediction.efficiency > 0.85
    assert any("compression is not needed" in reason for reason in found.reasons)


def test_links_that_are_too_slow_for_exact_gradients_make_bmuf_gtc() -> None:
    slow_inside = replace(cluster(100), within=Link(bytes_per_second=1e9))
    found = recommend(LSTM, slow_inside)
    assert found.strategy == "BMUFGTCStrategy"
    assert set(found.arguments) >= {"group_size", "density", "block_size"}


def test_inside_a_host_as_slow_as_between_hosts_every_rank_is_a_worker() -> None:
    slow = replace(cluster(100), within=Link(bytes_per_second=1e6))
    found = recommend(LSTM, slow)
    assert found.strategy == "BMUFStrategy" and found.settings.group_size == 1
    assert any("every rank trains its own model" in reason for reason in found.reasons)


def test_a_very_slow_network_overlaps_models_with_the_next_block() -> None:
    found = recommend(LSTM, cluster(20))
    assert found.arguments["block_sync"]["init_args"]["overlap"] is True
    assert any("during the next block" in reason for reason in found.reasons)


def test_adam_exchanges_moments_in_bfloat16_instead_of_late() -> None:
    found = recommend(replace(LSTM, optimizer="adam"), cluster(100))
    block = found.arguments["block_sync"]
    assert block["class_path"] == "lightning_hier.BMUFAdam"
    assert block["init_args"]["across_dtype"] == "bfloat16"
    assert "overlap" not in block["init_args"]


@pytest.mark.parametrize("mbit_s", [100, 300, 1000, 10_000])
def test_a_block_is_as_short_as_a_tenth_of_its_steps_allows(mbit_s: float) -> None:
    network = cluster(mbit_s, devices=1)
    settings = recommend(LSTM, network, {"overlap": False}).settings
    size, cost = settings.block_size, synchronise(LSTM, network, settings).blocking_s
    assert cost / (size * LSTM.step_s) <= 0.1 or size == 400
    assert size == 10 or cost / ((size - 1) * LSTM.step_s) > 0.1


def test_the_push_period_makes_computing_as_long_as_sending() -> None:
    network = cluster(1000, hosts=4, devices=2)
    period, found = recommend(LSTM, network).settings.push_period, cluster_of(LSTM, network)
    assert found.computation_seconds(period) >= found.transmission_seconds()
    assert found.computation_seconds(period - 1) < found.transmission_seconds()


def test_fixed_settings_are_kept() -> None:
    fixed = {"block_size": 77, "group_size": 2, "density": 0.02, "across_dtype": "int8"}
    found = recommend(LSTM, cluster(100), {**fixed, "overlap": True})
    assert found.strategy == "BMUFGTCStrategy"
    assert found.arguments == {**fixed, "overlap": True}
    # A block that is fixed is no reason for overlap.
    assert "overlap" not in recommend(LSTM, cluster(20), fixed).arguments


@pytest.mark.parametrize(
    ("fixed", "says"),
    [
        ({"block_size": 0}, "block_size must be a whole number of at least 1, got 0"),
        ({"group_size": 3}, "group_size must divide the 8 devices"),
        ({"density": 2.0}, "density must be above 0 and at most 1, got 2.0"),
    ],
)
def test_impossible_settings_are_refused(fixed: dict, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        recommend(LSTM, cluster(100), fixed)
    assert says in str(raised.value)


def test_overlap_of_adam_is_kept() -> None:
    found = recommend(replace(LSTM, optimizer="adam"), cluster(100), {"overlap": True})
    assert found.arguments["block_sync"]["init_args"]["overlap"] is True


def test_a_density_across_is_an_argument_of_the_component_and_its_bytes_are_compared() -> None:
    fixed = {"across_density": 0.02, "across_dtype": "int4"}
    for devices in (1, 8):
        found = recommend(LSTM, cluster(100, devices=devices), fixed)
        assert found.strategy == "HierarchicalStrategy"
        assert found.arguments["group_size"] == devices
        assert found.arguments["block_sync"]["init_args"].items() >= fixed.items()
        assert any("send fewer bytes on up to 20 hosts" in reason for reason in found.reasons)


@pytest.mark.parametrize("dtype", ["same", "bfloat16", "int8", "int4"])
def test_sparse_updates_send_fewer_bytes_up_to_the_number_of_hosts_that_is_named(
    dtype: str,
) -> None:
    settings = Settings(across_density=0.02, across_dtype=dtype)
    most = math.floor(sparse_break_even(4, settings))
    # The number of selected elements is rounded up, so both may be equal at the limit itself.
    for hosts, is_less in ((most - 1, True), (most + 1, False)):
        network = cluster(100, hosts=hosts, devices=1)
        sparse, dense = (
            synchronise(LSTM, network, own).host_bytes
            for own in (settings, replace(settings, across_density=1.0))
        )
        assert (sparse < dense) == is_less
