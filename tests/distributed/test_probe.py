"""Links are timed by all ranks in turn, and everybody gets all readings."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.channel import Pending
from lightning_hier.planning import probe
from lightning_hier.planning.probe import LinkReading, measure_links
from tests.distributed.gradients import open_world
from tests.ranks import rank_outcomes, run_ranks

LATE_S = 0.05
LIMIT = timedelta(seconds=60)


def _readings(group_size: int) -> list[LinkReading]:
    return measure_links(open_world(group_size=group_size), LIMIT)


def _kinds(readings: list[LinkReading]) -> Counter:
    return Counter((r.where, r.ranks) for r in readings)


def test_every_link_is_measured_once_and_known_to_all() -> None:
    found = run_ranks(_readings, 4, 2)
    assert all(readings == found[0] for readings in found)
    assert _kinds(found[0]) == {
        ("within", (0, 1)): 1,
        ("within", (2, 3)): 1,
        ("between", (0, 2)): 1,
    }
    assert all(r.link.bytes_per_second > 0 for r in found[0])
    assert all(r.processor_s >= 0 for r in found[0])


def test_neighbours_of_more_hosts_are_timed_in_a_ring() -> None:
    kinds = _kinds(run_ranks(_readings, 3, 1)[0])
    assert kinds == {("between", ranks): 1 for ranks in ((0, 1, 2), (0, 1), (1, 2), (0, 2))}


def _late_answers() -> tuple[list[LinkReading], int]:
    """Rank 1 is late in every all-reduce; also how many it took part in."""
    communicators = open_world(group_size=1)
    channel = communicators.across
    start, answers = channel.all_reduce_, 0

    def all_reduce_(tensor: Tensor, kind: str) -> Pending:
        nonlocal answers
        if channel.position == 1:
            answers += 1
            time.sleep(LATE_S)
        return start(tensor, kind)

    channel.all_reduce_ = all_reduce_  # type: ignore[method-assign]
    probe.SIZES, probe._REPEATS, probe._LIMIT_S = (64, 128), 50, 0.2
    return measure_links(communicators, LIMIT), answers


def test_a_slow_link_is_seen_and_repeated_less_often() -> None:
    (found, _), (_, answers) = run_ranks(_late_answers, 2)
    assert all(2 * r.link.latency_s + 64 / r.link.bytes_per_second >= LATE_S / 3 for r in found)
    # Two that do not count, then as many as the budget holds; of each of two sizes.
    assert answers <= 2 * (2 + 0.2 / LATE_S)


def _one_leaves() -> None:
    communicators = open_world(group_size=1, timeout_s=5.0)
    if dist.get_rank() == 0:
        measure_links(communicators, LIMIT)


def test_missing_rank_is_named() -> None:
    error = rank_outcomes(_one_leaves, 2)[0].error
    assert error is not None and error.startswith("PeerError") and "rank 1 did not take" in error
