"""The recommendation follows from the network, and has reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lightning_hier.planning import Link, Network, Processor, Workload, recommend
from lightning_hier.planning.recommend import ENOUGH, LONG

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
        ("adam", 15_000, "BMUFAdam", {"moments_every": 4}),
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


def test_fixed_settings_are_kept() -> None:
    fixed = {"block_size": 77, "group_size": 2, "density": 0.02, "across_dtype": "int8"}
    recommended = recommend(LSTM, cluster(100), {**fixed, "overlap": True})
    assert recommended.strategy == "BMUFGTCStrategy"
    assert recommended.arguments == {**fixed, "overlap": True, "warmup_steps": 0}
    free = recommend(LSTM, cluster(100), fixed)
    late = {"fragments": 4, "overlap": free.settings.overlap}
    assert free.arguments == {**fixed, **late, "warmup_steps": 0}
    assert 1 <= free.settings.overlap <= 77 / 4
