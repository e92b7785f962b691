"""Links are timed by all ranks in turn, and everybody gets all readings."""

from __future__ import annotations

import time
from collections import Counter

import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.channel import Pending
from lightning_hier.planning import probe
from lightning_hier.planning.probe import SIZES, LinkReading, measure_links
from tests.distributed.gradients import open_world
from tests.ranks import rank_outcomes, run_ranks

LATE_S = 0.05


def _readings(group_size: int) -> list[LinkReading]:
    return measure_links(open_world(group_size=group_size))


def _kinds(readings: list[LinkReading]) -> Counter:
    return Counter((r.where, r.operation, r.ranks) for r in readings)


def test_every_link_is_timed_once_a_size_and_known_to_all() -> None:
    found = run_ranks(_readings, 4, 2)
    assert all(readings == found[0] for readings in found)
    assert _kinds(found[0]) == {
        ("within", "all_reduce", (0, 1)): 4,
        ("within", "send", (0, 1)): 4,
        ("within", "all_reduce", (2, 3)): 4,
        ("within", "send", (2, 3)): 4,
        ("between", "all_reduce", (0, 2)): 4,
        ("between", "send", (0, 2)): 4,
    }
    assert {r.payload_bytes for r in found[0]} == set(SIZES)
    assert all(r.seconds > 0 for r in found[0])
    assert all(r.processor_s >= 0 for r in found[0])


def test_neighbours_of_more_hosts_are_timed_in_a_ring() -> None:
    kinds = _kinds(run_ranks(_readings, 3, 1)[0])
    pairs = [ranks for where, operation, ranks in kinds if operation == "send"]
    assert sorted(pairs) == [(0, 1), (1, 2), (2, 0)]
    assert all(where == "between" for where, _, _ in kinds)


def _late_answers() -> tuple[list[LinkReading], int]:
    """Rank 1 answers late; also how many answers it gave."""
    communicators = open_world(group_size=1)
    channel = communicators.across
    start, answers = channel.pass_, 0

    def pass_(tensor: Tensor, source: int, target: int, kind: str) -> tuple[Pending, ...]:
        nonlocal answers
        if source == channel.position == 1:
            answers += 1
            time.sleep(LATE_S)
        return start(tensor, source, target, kind)

    channel.pass_ = pass_  # type: ignore[method-assign]
    probe.SIZES, probe._REPEATS, probe._LIMIT_S = (64, 128), 50, 0.2
    return measure_links(communicators), answers


def test_a_slow_link_is_seen_and_repeated_less_often() -> None:
    (found, _), (_, answers) = run_ranks(_late_answers, 2)
    assert all(r.seconds >= LATE_S / 2 for r in found if r.operation == "send")
    # Two that do not count, then as many as the budget holds; of each of two sizes.
    assert answers <= 2 * (2 + 0.2 / LATE_S)


def _one_leaves() -> None:
    communicators = open_world(group_size=1, timeout_s=5.0)
    if dist.get_rank() == 0:
        measure_links(communicators)


def test_missing_rank_is_named() -> None:
    error = rank_outcomes(_one_leaves, 2)[0].error
    assert error is not None and error.startswith("PeerError") and "rank 1 did not take" in error
