"""Costs that can be computed by hand, and what is true of every prediction."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lightning_hier.planning import (
    Link,
    Network,
    Processor,
    Settings,
    Workload,
    predict,
    predict_all,
)
from lightning_hier.planning.collectives import Layout

ROUNDING = 1 + 1e-9
FREE = 1e18


@pytest.mark.parametrize("optimizer", ["sgd_momentum", "adam"])
@pytest.mark.parametrize(("hosts", "devices"), [(1, 4), (4, 1), (16, 8)])
def test_predictions_are_consistent_and_a_faster_link_costs_nothing(
    hosts: int, devices: int, optimizer: Any
) -> None:
    links = [Link(bytes_per_second=rate, latency_s=1e-4) for rate in (1e6, 1e8, 1e9, 1e11)]
    workload = Workload(parameters=10**7, step_s=0.1, optimizer=optimizer, buffers=100)
    settings = Settings(block_size=20, group_size=devices, across_dtype="int8", fragments=2)
    slower = None
    for within, between in ((links[1], links[0]), *((links[-1], own) for own in links)):
        network = Network(hosts=hosts, devices=devices, within=within, between=between)
        predictions = predict_all(workload, network, settings)
        for own in predictions:
            assert 0 < own.efficiency <= ROUNDING
            assert own.speedup == pytest.approx(own.ranks * own.efficiency)
            ranks = own.settings["group_size"] if own.strategy.endswith("_fsdp") else 1
            assert own.memory_bytes >= 2 * workload.gradient_bytes / ranks
            assert (own.host_bytes > 0) == (hosts > 1)
        for one, other in zip(slower or predictions, predictions, strict=True):
            assert other.step_s <= one.step_s * ROUNDING, one.strategy
        slower = predictions


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
# Health reports take 15 microseconds.
CLOSE = 1e-3


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


@pytest.mark.parametrize("hosts", [4, 64])
def test_quantised_sums_take_two_latencies_on_any_number_of_hosts(hosts: int) -> None:
    workload = Workload(parameters=10**6, step_s=0.1)
    pauses = []
    for latency_s in (0.0, 1.0):
        link = Link(bytes_per_second=1e12, latency_s=latency_s)
        network = Network(hosts=hosts, devices=1, within=link, between=link)
        settings = Settings(block_size=10, across_dtype="int8")
        pauses.append(predict("bmuf", workload, network, settings).pause_s)
    reports = 1 + math.log2(hosts)
    assert pauses[1] - pauses[0] == pytest.approx(reports + 2)
