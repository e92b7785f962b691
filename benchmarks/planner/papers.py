"""Tables of the papers."""

from __future__ import annotations

from collections.abc import Callable
from math import log

from benchmarks.planner.block_costs import BlockCosts, SpeedupReading, fit_block_costs
from benchmarks.planner.comparison import Comparison, Section
from benchmarks.sizing import Cluster

BMUF = {25: 91.3, 50: 101.5, 100: 106.5, 200: 110.3}
"""Speedup in frames/s at 128 GPUs by block size (two_tiered_bmuf_gtc, Table 2)."""

BMUF_GTC = {25: 77.9, 50: 97.8, 100: 99.6, 200: 105.5}

BMUF_BY_RANKS = {16: 15.7, 32: 28.1, 64: 58.2, 128: 101.5}
"""Speedup with block size 50, by number of GPUs (Table 1)."""

ALONE_S = 4951.53
"""Epoch of Adam on one GPU (bmuf_adam, Table 2)."""

EPOCH_S = {
    (16, 8): 320.34, (16, 16): 310.78, (16, 32): 303.54,
    (32, 8): 164.36, (32, 16): 157.68, (32, 32): 153.64,
    (64, 8): 84.83,
}  # fmt: skip
"""Epoch by number of GPUs and block size. Our copy of the paper ends at 64 GPUs, block size 8."""

KFPS = {
    (1, 2): (28.2, 15.1),
    (2, 4): (56.3, 30.0),
    (3, 6): (84.6, 44.5),
    (4, 8): (112.5, 59.6),
}
"""Thousands of frames per second with and without double buffering, by devices of a node and push
period (two_stage_asgd, Table 2). 4 nodes, 9400 frames/s of one device, mini-batches of 4096,
112 MB."""

_NODES, _DEVICE_FPS, _BATCH, _MODEL_BYTES = 4, 9400.0, 4096, 112e6


def sections() -> list[Section]:
    """Return all sections."""
    return [
        _by_block("BMUF on 128 GPUs", BMUF, 0.01),
        _by_block("BMUF_GTC on 128 GPUs", BMUF_GTC, 0.07),
        _by_ranks(),
        _bmuf_adam(),
        _two_stage(),
        _two_stage_table_3(),
    ]


def _fit(table: dict[int, float]) -> BlockCosts:
    return fit_block_costs(
        [
            SpeedupReading(ranks=128, block_size=size, speedup=reference)
            for size, reference in table.items()
        ]
    )


def _by_block(name: str, table: dict[int, float], limit: float) -> Section:
    costs = _fit(table)
    rows = [
        Comparison(
            name=f"block size {size}", predicted=costs.speedup(128, size), reference=reference
        )
        for size, reference in table.items()
    ]
    return Section(
        title=name,
        unit="speedup",
        source="two_tiered_bmuf_gtc, Table 2, frames/s",
        given=f"efficiency and cost of a synchronisation, both fitted to the rows: {_text(costs)}.",
        rows=rows,
        limit=limit,
    )


def _by_ranks() -> Section:
    costs = _fit(BMUF)
    return Section(
        title="BMUF on fewer GPUs",
        unit="speedup",
        source="two_tiered_bmuf_gtc, Table 1, block size 50",
        given=f"the parameters fitted on 128 GPUs: {_text(costs)}.",
        rows=[
            Comparison(
                name=f"{ranks} GPUs", predicted=costs.speedup(ranks, 50), reference=reference
            )
            for ranks, reference in BMUF_BY_RANKS.items()
        ],
        limit=None,
        remark="The loss per rank grows with the number of ranks, so the parameters fitted on 128 "
        "GPUs are too pessimistic for fewer. In the paper, 16 GPUs reach 98% of linear speedup.",
    )


def _bmuf_adam() -> Section:
    costs = fit_block_costs(
        [
            SpeedupReading(ranks=ranks, block_size=size, speedup=ALONE_S / reference)
            for (ranks, size), reference in EPOCH_S.items()
        ]
    )
    return Section(
        title="BMUF-Adam, OCR",
        unit="s per epoch",
        source="bmuf_adam, Table 2",
        given=f"the epoch on one GPU, {ALONE_S} s, and two parameters fitted to all rows: "
        f"{_text(costs)}.",
        rows=[
            Comparison(
                name=f"{ranks} GPUs, block size {size}",
                predicted=ALONE_S / costs.speedup(ranks, size),
                reference=reference,
            )
            for (ranks, size), reference in EPOCH_S.items()
        ],
        limit=0.10,
        remark="The efficiency exceeds 1: 16 GPUs with block size 32 take less than 1/16 of the "
        "epoch of one GPU, so the run on one GPU had an overhead that the run on 16 did not have.",
    )


def _cluster(devices: int, bandwidth: float) -> Cluster:
    return Cluster(
        nodes=_NODES,
        devices=devices,
        model_bytes=_MODEL_BYTES,
        bandwidth=bandwidth,
        batch_samples=_BATCH,
        device_speed=_DEVICE_FPS,
    )


def _table_2(bandwidth: float) -> list[Comparison]:
    rows = []
    for (devices, period), reference in KFPS.items():
        cluster = _cluster(devices, bandwidth)
        for buffering, value in zip((True, False), reference, strict=True):
            speed = cluster.samples_per_second(period, double_buffering=buffering)
            name = f"4x{devices}, N = {period}, {'with' if buffering else 'without'} buffering"
            rows.append(Comparison(name=name, predicted=speed / 1e3, reference=value))
    return rows


def _fitted_bandwidth() -> float:
    """Fit the bandwidth to Table 2 by least squares of logarithmic deviations."""

    def cost(bandwidth: float) -> float:
        return sum(log(1 + row.deviation) ** 2 for row in _table_2(bandwidth))

    return least(cost, 3e8, 1.3e9)


def _two_stage() -> Section:
    bandwidth = _fitted_bandwidth()
    return Section(
        title="Two-stage ASGD",
        unit="kfps",
        source="two_stage_asgd, Table 2",
        given="eq. 6 and 7, 9.4 kfps per device, N_e = 4, M = 112 MB, and the effective bandwidth "
        f"B, which the paper does not report: {bandwidth / 1e6:.0f} MB/s, fitted to all rows.",
        rows=_table_2(bandwidth),
        limit=0.10,
    )


def _two_stage_table_3() -> Section:
    bandwidth = _fitted_bandwidth()
    speed = _cluster(2, bandwidth).samples_per_second(6) / 1e3
    return Section(
        title="Two-stage ASGD, Table 3",
        unit="kfps",
        source="two_stage_asgd, Table 3",
        given="the same bandwidth; N = 6.",
        rows=[Comparison(name="4x2, N = 6", predicted=speed, reference=55.7)],
        limit=None,
        remark="This table of the paper includes initialisation, and N = 6 is no faster than N = 4 "
        "(56.3 in Table 2). In eq. 6 and 7 it is faster, because T_calc is the longer term.",
    )


def least(cost: Callable[[float], float], low: float, high: float) -> float:
    """Minimise a unimodal function between two points by ternary search."""
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return (low + high) / 2


def _text(costs: BlockCosts) -> str:
    return f"e = {costs.efficiency:.3f}, s = {costs.synchronisation_steps:.2f} steps"
