"""What is recommended follows from the network, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_hier.algorithms.planning.network import Link, Network, Processor
from lightning_hier.algorithms.planning.recommend import Wishes, recommend
from lightning_hier.algorithms.planning.synchronisation import BlockSettings, synchronise
from lightning_hier.algorithms.planning.tuning import (
    BLOCK_SIZES,
    recommend_block_size,
    recommend_group_size,
    recommend_push_period,
)
from lightning_hier.algorithms.planning.two_stage import cluster_of
from lightning_hier.algorithms.planning.workload import Workload

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
    assert "no need for anything else" in found.reasons[0]
    # Ranks that are slower beside each other are no reason for another strategy.
    assert recommend(replace(LSTM, efficiency=0.8), cluster(400_000, devices=1)).strategy == "ddp"


def test_fast_links_inside_hosts_make_groups_with_exact_gradients() -> None:
    found = recommend(LSTM, cluster(1000))
    assert found.strategy == "HierarchicalStrategy"
    assert found.arguments["group_size"] == 8
    assert found.arguments["gradient_sync"] == {"class_path": "lightning_hier.AllReduce"}
    assert found.prediction.efficiency > 0.85
    assert any("nothing to compress" in reason for reason in found.reasons)


def test_links_that_are_too_slow_for_exact_gradients_make_bmuf_gtc() -> None:
    slow_inside = replace(cluster(100), within=Link(bytes_per_second=1e9))
    found = recommend(LSTM, slow_inside)
    assert found.strategy == "BMUFGTCStrategy"
    assert set(found.arguments) >= {"group_size", "density", "block_size"}


def test_inside_a_host_as_slow_as_between_hosts_every_rank_is_a_worker() -> None:
    network = cluster(100)
    slow = replace(network, within=Link(bytes_per_second=1e6))
    size, why = recommend_group_size(LSTM, slow)
    assert size == 1 and "model of its own" in why
    assert recommend(LSTM, slow).strategy == "BMUFStrategy"


def test_a_very_slow_network_makes_models_travel_beside_the_next_block() -> None:
    found = recommend(LSTM, cluster(20))
    assert found.arguments["block_sync"]["init_args"]["overlap"] is True
    assert any("while the next block is trained" in reason for reason in found.reasons)


def test_adam_takes_its_moments_along_and_never_overlaps() -> None:
    found = recommend(replace(LSTM, optimizer="adam"), cluster(100))
    block = found.arguments["block_sync"]
    assert block["class_path"] == "lightning_hier.BMUFAdam"
    assert block["init_args"]["across_dtype"] == "bfloat16"
    assert "overlap" not in block["init_args"]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_a_block_is_as_short_as_its_share_allows(share: float) -> None:
    network = cluster(1000, devices=1)
    size, _ = recommend_block_size(LSTM, network, BlockSettings(), 0.15, share=share)
    cost = synchronise(LSTM, network, BlockSettings()).visible_s
    assert cost / (size * 0.15) <= share or size == BLOCK_SIZES[1]
    assert size == BLOCK_SIZES[0] or cost / ((size - 1) * 0.15) > share


def test_the_push_period_makes_computing_as_long_as_sending() -> None:
    network = cluster(1000, hosts=4, devices=2)
    period, why = recommend_push_period(LSTM, network)
    found = cluster_of(LSTM, network)
    assert found.computation_seconds(period) >= found.transmission_seconds()
    assert found.computation_seconds(period - 1) < found.transmission_seconds()
    assert str(period) in why and "too slow" not in why


def test_a_push_period_that_is_no_plan_is_said_to_be_none() -> None:
    period, why = recommend_push_period(LSTM, cluster(1000, hosts=1000, devices=2))
    assert period > 2 * 32 and why.endswith("too slow for so many nodes.")


def test_wishes_are_kept() -> None:
    wishes = Wishes(block_size=77, group_size=2, density=0.02, across_dtype="int8", overlap=True)
    found = recommend(LSTM, cluster(100), wishes=wishes)
    assert found.strategy == "BMUFGTCStrategy"
    assert found.arguments == {
        "group_size": 2,
        "density": 0.02,
        "block_size": 77,
        "across_dtype": "int8",
        "overlap": True,
    }


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        (Wishes(block_size=0), "block_size must be a whole number of at least 1, got 0"),
        (Wishes(group_size=3), "group_size must divide the 8 devices"),
        (Wishes(density=2.0), "density must lie between 0 and 1, got 2.0"),
        (Wishes(share=0.0), "share must be above 0 and at most 1, got 0.0"),
    ],
)
def test_impossible_wishes_are_refused(wishes: Wishes, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        recommend(LSTM, cluster(100), wishes=wishes)
    assert says in str(raised.value)
