"""Counting costs under 1% of what is counted (promise 10), the range for profilers included."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.traffic import Traffic
from tests.ranks import run_ranks

# A small message: a bucket of DDP is up to 25 MB, and the larger it is the less counting weighs. On
# a machine whose cores others take away in between, the few microseconds of counting grow tenfold.
_ELEMENTS = 1_000_000


def seconds_of(calls: int) -> tuple[float, float]:
    """Median seconds of one collective and of counting it, measured in turn."""
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
