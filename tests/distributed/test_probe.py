"""Links are timed by all ranks, and everybody gets what the slowest ones take."""

from __future__ import annotations

import time

import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.channel import Pending
from lightning_hier.planning import Link, probe
from lightning_hier.planning.probe import measure_links
from tests.distributed.gradients import open_world
from tests.ranks import rank_outcomes, run_ranks

LATE_S = 0.05


def _links(group_size: int) -> tuple[Link | None, Link | None, float | None]:
    return measure_links(open_world(group_size=group_size))


def test_links_are_known_to_all() -> None:
    for ranks, group_size in ((4, 2), (2, 1), (2, 2)):
        found = run_ranks(_links, ranks, group_size)
        assert all(links == found[0] for links in found)
        within, between, socket_rate = found[0]
        assert (within is None) == (group_size == 1) and (between is None) == (group_size == ranks)
        assert socket_rate is not None and socket_rate > 0


def _late_answers() -> tuple[Link | None, int]:
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
    return measure_links(communicators)[1], answers


def test_a_slow_link_is_seen_and_repeated_less_often() -> None:
    (found, _), (_, answers) = run_ranks(_late_answers, 2)
    assert found is not None
    assert 2 * found.latency_s + 64 / found.bytes_per_second >= LATE_S / 3
    # Two that do not count, then as many as the budget holds; of each of two sizes.
    assert answers <= 2 * (2 + 0.2 / LATE_S)


def _one_leaves() -> None:
    communicators = open_world(group_size=1, timeout_s=5.0)
    if dist.get_rank() == 0:
        measure_links(communicators)


def test_missing_rank_is_named() -> None:
    error = rank_outcomes(_one_leaves, 2)[0].error
    assert error is not None and error.startswith("PeerError") and "rank 1 did not take" in error
