"""Collectives of a channel, their byte counts, and the cost of counting (promise 10)."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist

from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.traffic import Count, Traffic
from tests.distributed.gradients import open_world
from tests.ranks import run_ranks


def _collectives() -> dict[str, tuple[int, int, int]]:
    communicators = open_world(group_size=2)
    rank = dist.get_rank()
    group, across, world = communicators.group, communicators.across, communicators.world

    total = torch.full((100,), float(rank))
    group.all_reduce_(total, "a").wait()
    assert total.tolist() == [float(sum(group.ranks))] * 100

    rows = torch.empty(6, dtype=torch.int32)
    across.all_gather(rows, torch.full((3,), rank, dtype=torch.int32), "b").wait()
    assert rows.tolist() == [r for r in across.ranks for _ in range(3)]

    copied = torch.full((10,), rank, dtype=torch.int64)
    world.broadcast_(copied, "c", source=2).wait()
    assert copied.tolist() == [2] * 10

    future = torch.full((8,), 1.0)
    result = group.all_reduce_(future, "d").future().wait()
    assert result.data_ptr() == future.data_ptr()
    assert result.tolist() == [2.0] * 8

    short = world.gather_rows(torch.tensor([rank, -rank]), "e")
    assert short.tolist() == [[r, -r] for r in range(4)]

    def seen(tier: str, kind: str) -> tuple[int, int, int]:
        count: Count = communicators.traffic.of(tier, kind)
        assert count.seconds >= 0.0
        return count.payload_bytes, count.calls, round(count.seconds)

    counts = {
        "a": seen("group", "a"),
        "b": seen("across", "b"),
        "c": seen("across", "c"),
        "d": seen("group", "d"),
        "e": seen("across", "e"),
    }
    assert communicators.traffic.total("group").payload_bytes == counts["a"][0] + counts["d"][0]
    return counts


def test_collectives_and_their_bytes() -> None:
    for rank, counts in enumerate(run_ranks(_collectives, 4)):
        assert counts["a"][:2] == (2 * 100 * 4 // 2, 1)  # a ring sends 2 (P - 1) / P of the tensor
        assert counts["b"][:2] == (3 * 4, 1)  # to each of the others
        assert counts["c"][:2] == ((80 if rank == 2 else 0), 1)  # only the source sends
        assert counts["d"][:2] == (8 * 4, 1)
        assert counts["e"][:2] == ((4 * 16 if rank == 0 else 16), 1)  # rank 0 broadcasts all rows


def _mixed_broadcast() -> list[list[float]]:
    communicators = open_world()
    rank = dist.get_rank()
    tied = torch.full((2,), float(rank))
    tensors = [
        tied,
        torch.tensor([rank == 0, rank != 0]),
        torch.tensor([10 + rank, 20 + rank]),
        torch.full((2, 3), rank + 0.5, dtype=torch.bfloat16).t(),
        torch.tensor(rank),
        torch.empty(0),
        torch.tensor([rank], dtype=torch.uint8),
        torch.tensor([complex(rank, 1)]),
        torch.tensor([rank], dtype=torch.int16),
        torch.tensor([float(rank)] * 3, dtype=torch.float8_e4m3fn),
        tied,
    ]
    places = [tensor.data_ptr() for tensor in tensors]
    broadcast_tensors_(tensors, communicators.world, "initial_model")
    assert [tensor.data_ptr() for tensor in tensors] == places
    sent = communicators.traffic.of("group", "initial_model")
    own = 4 * 2 + 2 + 2 * 8 + 6 * 2 + 8 + 1 + 8 + 2 + 3
    assert sent.payload_bytes == (own if rank == 0 else 0)
    return [
        torch.view_as_real(t).tolist() if t.is_complex() else t.float().tolist() for t in tensors
    ]


def test_broadcast_of_every_dtype_in_place() -> None:
    first, *others = run_ranks(_mixed_broadcast, 3)
    assert first[1] == [1.0, 0.0]
    assert first[2] == [10, 20]
    assert all(other == first for other in others)


# A small message: a bucket of DDP has up to 25 MB, and counting matters less the larger it is. On a
# machine with busy cores, the few microseconds of counting can become ten times as long.
_ELEMENTS = 1_000_000


def seconds_of(calls: int) -> tuple[float, float]:
    """Median seconds of a collective and of counting it, measured alternately."""
    dist.init_process_group("gloo")
    traffic = Traffic()
    tensor = torch.zeros(_ELEMENTS)
    sending, counting = [], []
    for _ in range(calls):
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        sent = time.perf_counter()
        with profiler_range("hier/wait"):
            traffic.add_wait("group", sent - begun)
        traffic.add("group", "gradients", payload_bytes=tensor.nbytes, seconds=sent - begun)
        counted = time.perf_counter()
        sending.append(sent - begun)
        counting.append(counted - sent)
    assert traffic.of("group", "gradients").calls == calls
    return median(sending), median(counting)


def test_counting_costs_less_than_one_percent_of_a_collective() -> None:
    for sending, counting in run_ranks(seconds_of, 2, 100):
        assert counting < 0.01 * sending
