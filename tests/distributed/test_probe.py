"""All ranks measure the links, and every rank gets the results of the slowest links."""

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


def test_all_ranks_have_the_same_links() -> None:
    for ranks, group_size in ((4, 2), (2, 1), (2, 2)):
        by_rank = run_ranks(_links, ranks, group_size)
        assert all(links == by_rank[0] for links in by_rank)
        within, between, socket_rate = by_rank[0]
        assert (within is None) == (group_size == 1) and (between is None) == (group_size == ranks)
        assert socket_rate is not None and socket_rate > 0


def _late_answers() -> tuple[Link | None, int]:
    """Link and number of all-reduces on this rank, with a rank 1 that is late in each of them."""
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


def test_a_slow_link_is_measured_with_fewer_repeats() -> None:
    (link, _), (_, answers) = run_ranks(_late_answers, 2)
    assert link is not None
    assert 2 * link.latency_s + 64 / link.bytes_per_second >= LATE_S / 3
    # For each of two sizes, two that are not measured, then as many as the time limit allows.
    assert answers <= 2 * (2 + 0.2 / LATE_S)


def _one_leaves() -> None:
    communicators = open_world(group_size=1, timeout_s=5.0)
    if dist.get_rank() == 0:
        measure_links(communicators)


def test_missing_rank_is_named() -> None:
    error = rank_outcomes(_one_leaves, 2)[0].error
    assert error is not None and error.startswith("PeerError") and "rank 1 did not take" in error
