"""Speedups in two_tiered_bmuf_gtc, beside the planner's predictions for the paper's cluster.

The inputs of the planner are the paper's hosts (3.1) and the speed of a single GPU. No measurement
with several GPUs is used. A GPU takes 290 minutes for 2000 hours at 33 frames a second. With
mini-batches of 2048 frames, a step takes 148 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from examples.tables import markdown
from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict

# Speedups in Table 1 by the number of GPUs, with blocks of 50 steps.
TABLE_1 = {
    "gtc": {16: 12.5, 32: 23.51, 64: 21.66, 128: 10.93},
    "bmuf_nbm": {16: 15.7, 32: 28.1, 64: 58.2, 128: 101.5},
    "bmuf_gtc": {16: 13.9, 32: 24.2, 64: 49.2, 128: 97.8},
}
# Speedups in Table 2 by the block size, on 128 GPUs.
TABLE_2 = {
    "bmuf_nbm": {25: 91.3, 50: 101.5, 100: 106.5, 200: 110.3},
    "bmuf_gtc": {25: 77.9, 50: 97.8, 100: 99.6, 200: 105.5},
}

GPUS_PER_HOST = 8
WORK = Workload(parameters=24_300_000, step_s=0.148)
STRATEGIES = {"gtc": "gtc", "bmuf_nbm": "bmuf", "bmuf_gtc": "bmuf_gtc"}

_NOTE = (
    "Speedup over one GPU, predicted by the planner for the paper's cluster and measured by the "
    "paper. The cluster has 8 V100 in a host and 25 Gbit/s between hosts. The prediction uses the "
    "speed of one GPU and a GTC density of 1%. The planner does not model stragglers and reading "
    "of data, which cost 11 to 13% in the paper ([fitted](planner.md)). For measurements over "
    "emulated hosts, see [performance](performance.md), and [the planner's report](planner.md) for "
    "a comparison with its predictions."
)


def cluster(workers: int) -> Network:
    """Return the paper's cluster, with 300 Gbit/s in a host and copies at 350 GB/s in a V100."""
    return Network(
        hosts=workers // GPUS_PER_HOST,
        devices=GPUS_PER_HOST,
        within=Link(latency_s=2e-5, bytes_per_second=300e9 / 8),
        between=Link(latency_s=1e-4, bytes_per_second=25e9 / 8),
        processor=Processor(copy_bytes_per_second=350e9),
    )


def predicted(system: str, workers: int, block_size: int = 50) -> float:
    """Return the speedup that the planner predicts, without stragglers."""
    settings = Settings(block_size=block_size, group_size=GPUS_PER_HOST, density=0.01)
    return predict(STRATEGIES[system], WORK, cluster(workers), settings).speedup


def by_workers(titles: Mapping[str, str]) -> str:
    """Return the predictions and measurements of Table 1 in Markdown."""
    return _speedup_table(titles, "workers", TABLE_1, predicted)


def by_block(titles: Mapping[str, str]) -> str:
    """Return the predictions and measurements of Table 2 in Markdown."""
    return _speedup_table(
        titles, "block size", TABLE_2, lambda system, size: predicted(system, 128, size)
    )


def _speedup_table(
    titles: Mapping[str, str],
    column: str,
    measured: Mapping[str, Mapping[int, float]],
    predict_speedup: Callable[[str, int], float],
) -> str:
    rows = [
        (titles[system], str(number), f"{predict_speedup(system, number):.1f}", f"{speedup:.1f}")
        for system, speedups in measured.items()
        for number, speedup in speedups.items()
    ]
    return f"{_NOTE}\n\n{markdown(('system', column, 'planner', 'paper'), rows)}"
