"""Speedups of two_tiered_bmuf_gtc: as the planner predicts them for its cluster, and the paper's.

The planner is told what the paper says of its hosts (3.1) and of one GPU by itself, and nothing
that was measured with several: 290 minutes for 2000 hours of 33 frames a second in mini-batches of
2048 frames are 148 ms a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from examples.tables import markdown
from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict

# Frames a second in Table 1 with blocks of 50, and in Table 2 on 128 GPUs, as speedups.
TABLE_1 = {
    "gtc": {16: 12.5, 32: 23.51, 64: 21.66, 128: 10.93},
    "bmuf_nbm": {16: 15.7, 32: 28.1, 64: 58.2, 128: 101.5},
    "bmuf_gtc": {16: 13.9, 32: 24.2, 64: 49.2, 128: 97.8},
}
TABLE_2 = {
    "bmuf_nbm": {25: 91.3, 50: 101.5, 100: 106.5, 200: 110.3},
    "bmuf_gtc": {25: 77.9, 50: 97.8, 100: 99.6, 200: 105.5},
}

GPUS_PER_HOST = 8
WORK = Workload(parameters=24_300_000, step_s=0.148)
STRATEGIES = {"gtc": "gtc", "bmuf_nbm": "bmuf", "bmuf_gtc": "bmuf_gtc"}

_SAID = (
    "Speed, in frames a second of one GPU: what the planner predicts for the paper's cluster, 8 "
    "V100 in a host and 25 Gbit/s between hosts, from the speed of one GPU and a GTC density of "
    "1%, and what the paper measured. The planner knows of no stragglers and of no reading of "
    "data, which cost the paper 11 to 13% ([fitted](planner.md)). What our strategies take over "
    "emulated hosts stands in [performance](performance.md), beside the planner in "
    "[its report](planner.md)."
)


def cluster(workers: int) -> Network:
    """The paper's hosts; 300 Gbit/s in a host, and a V100 copies about 350 GB/s."""
    return Network(
        hosts=workers // GPUS_PER_HOST,
        devices=GPUS_PER_HOST,
        within=Link(latency_s=2e-5, bytes_per_second=300e9 / 8),
        between=Link(latency_s=1e-4, bytes_per_second=25e9 / 8),
        processor=Processor(copy_bytes_per_second=350e9),
    )


def predicted(system: str, workers: int, block_size: int = 50) -> float:
    """Speedup by the planner, without stragglers."""
    settings = Settings(block_size=block_size, group_size=GPUS_PER_HOST, density=0.01)
    return predict(STRATEGIES[system], WORK, cluster(workers), settings).speedup


def by_workers(titles: Mapping[str, str]) -> str:
    """Beside Table 1."""
    return _beside(titles, "workers", TABLE_1, predicted)


def by_block(titles: Mapping[str, str]) -> str:
    """Beside Table 2."""
    return _beside(titles, "block size", TABLE_2, lambda system, size: predicted(system, 128, size))


def _beside(
    titles: Mapping[str, str],
    column: str,
    papers: Mapping[str, Mapping[int, float]],
    planner: Callable[[str, int], float],
) -> str:
    rows = [
        (titles[system], str(number), f"{planner(system, number):.1f}", f"{paper:.1f}")
        for system, own in papers.items()
        for number, paper in own.items()
    ]
    return f"{_SAID}\n\n{markdown(('system', column, 'planner', 'paper'), rows)}"
