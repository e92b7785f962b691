"""Arithmetic of the performance benchmark: figures, wire time, steps, and the result store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.performance.between import Pair, processor_ratio, ratio
from benchmarks.performance.figures import figures
from benchmarks.performance.job import Network, steps_for
from benchmarks.performance.link import bytes_to_send, wire_seconds
from benchmarks.performance.short import regressions
from benchmarks.performance.store import Store
from benchmarks.performance.systems import SYSTEMS, System, named, unavailable_reason
from benchmarks.performance.work import Work


def reading(host: int, steps_s: list[float], **other: Any) -> dict[str, Any]:
    return {
        "host": host,
        "goodput": 1e8,
        "control_s": [0.1, 0.3],
        "steps_s": steps_s,
        "sent_bytes": [100.0] * len(steps_s),
        "extra_peak_bytes": 1000,
        "metrics": {},
        **other,
    }


def test_steps_at_the_end_of_a_block_are_separated_from_those_between() -> None:
    own = figures([reading(0, [0.2, 0.2, 0.2, 1.4]), reading(1, [0.2, 0.2, 0.2, 1.4])], 2)
    assert own.step_s == pytest.approx(0.5)
    assert own.between_s == pytest.approx(0.2)
    assert own.synchronisation_s == pytest.approx(0.6)  # the mean of 0 and 1.2 above the others
    assert own.control_s == pytest.approx(0.2)
    assert own.ratio == pytest.approx(2.5)
    assert own.communication_share == pytest.approx(0.6)


def test_bytes_of_a_host_count_once_for_any_number_of_ranks() -> None:
    ranks = [reading(host, [0.1] * 4, sent_bytes=[sent, 0, 0, 100]) for host, sent in
             ((0, 300), (0, 304), (1, 700), (1, 700))]  # fmt: skip
    own = figures(ranks, 1)
    assert own.host_bytes == pytest.approx((404 + 800) / 2 / 4)
    assert own.peak_bytes == pytest.approx((304 + 700) / 2)


@pytest.mark.parametrize(
    ("sent", "least", "least_with_overlap"), [(4e7, 1.5, 1.0), (1.2e8, 2.5, 1.5)]
)
def test_the_link_alone_limits_a_step(sent: float, least: float, least_with_overlap: float) -> None:
    """10 and 30 MB a step at 100 MB/s take 0.1 and 0.3 s; a step alone takes 0.2 s."""
    own = figures([reading(0, [0.5] * 4, sent_bytes=[sent / 4] * 4)], 1)
    assert own.least_ratio(overlap=False) == pytest.approx(least)
    assert own.least_ratio(overlap=True) == pytest.approx(least_with_overlap)


@pytest.mark.parametrize(("hosts", "models"), [(2, 1.0), (4, 1.5)])
def test_fewest_bytes_that_a_host_must_send(hosts: int, models: float) -> None:
    assert bytes_to_send(100, hosts) == pytest.approx(100 * models)


def test_wire_time() -> None:
    # 24.3M float32 over 0.956 Gbit/s
    assert wire_seconds(4 * 24_301_935, 0.956e9 / 8) == pytest.approx(0.8134, abs=1e-4)
    with pytest.raises(ValueError, match="goodput must be above 0"):
        wire_seconds(1.0, 0.0)


def test_whole_blocks_are_measured_and_slow_dense_steps_are_few() -> None:
    slow, fast = Network.read("2x2", "100mbit"), Network.read("2x2", "1gbit")
    for system in SYSTEMS:
        steps = steps_for(system, Work(), slow, blocks=2)
        if system.block > 1 and system.family != "limit":
            assert steps.warm_up % system.block == steps.window % system.block == 0
    ddp = named("ddp")
    few, many = (steps_for(ddp, Work(), network, blocks=2) for network in (slow, fast))
    assert few.window < many.window


def test_arguments_that_a_strategy_does_not_take_leave_the_row_out() -> None:
    """A strategy passes unknown arguments to DDP, so names must be those of its own arguments."""

    def ours(**arguments: Any) -> System:
        return System(
            name="x", title="x", family="ours", factory="BMUFStrategy", arguments=arguments
        )

    assert unavailable_reason(ours(block_size=50)) is None
    assert unavailable_reason(ours(block_sise=50)) == "BMUFStrategy has no argument block_sise"
    missing = System(name="x", title="x", family="peer", needs="no_such_package")
    assert "no_such_package is not installed" in str(unavailable_reason(missing))
    with pytest.raises(ValueError, match="unknown system 'bmf'"):
        named("bmf")


def test_store_continues_after_a_truncated_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    store = Store(path)
    assert store.lines() == []
    store.add("a", {"value": 1})
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    assert "a" in store and "b" not in store
    store.add("c", {"value": 3})
    assert [line["key"] for line in store.lines()] == ["a", "c"]
    path.write_text('broken\n{"key": "d"}\n')
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        store.lines()


def test_ratio_of_steps_between_block_ends_counts_all_added_time() -> None:
    pair = Pair(bare_s=0.05, ours_s=0.053, bare_processor_s=0.04, ours_processor_s=0.055)
    late = Pair(bare_s=0.05, ours_s=9.0, bare_processor_s=0.04, ours_processor_s=0.055)
    assert ratio([pair, pair, late], 0.15) == pytest.approx(1.02)
    assert processor_ratio([pair, pair, late], 0.15) == pytest.approx(1.1)


def test_short_benchmark_reports_regressions_of_more_than_a_third() -> None:
    committed = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert regressions({"a": 1.3, "b": 1.4, "c": 0.2}, committed) == ["b"]
    assert regressions({"new": 0.1}, committed) == ["new"]
