"""LocalSGD measured by another project: github.com/Adnan082/diloco-measured, 07b7885.

Four hosts with one L40S each, NCCL over TCP, rates limited by a token bucket. Every H steps the
parameter tensors are all-reduced in float32, one after the other. It is their implementation
(`measurement/localsgd.py`), which sends the same data as torchft's LocalSGD. The step times and the
payload measured by iperf3 are from the same runs (`results/raw/cu_grid-localsgd-*.json`).
"""

from __future__ import annotations

from benchmarks.planner.comparison import Comparison, Section
from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict

PARAMETERS = 30_846_720

STEP_S = {1: 0.0257, 8: 0.0247, 32: 0.0245, 128: 0.0246}
"""Mean computation time of a step, by block size."""

PAYLOAD_SHARE = 0.992
"""Payload of the rate-limited links as a fraction of their rate."""

UTILISATION = {
    1: {50: 0.07, 200: 0.31, 1000: 1.69, 5000: 7.61},
    8: {50: 0.52, 200: 2.40, 1000: 11.83, 5000: 38.65},
    32: {50: 2.30, 200: 9.36, 1000: 33.65, 5000: 62.57},
    128: {50: 10.81, 200: 33.46, 1000: 65.56, 5000: 80.72},
}
"""Percentage of the time spent in computation, by block size and Mbit/s."""


def utilisation(block_size: int, mbit_s: float, step_s: float) -> float:
    """Predict the percentage of the time spent in computation.

    Model averaging sends the same data as LocalSGD: a ring all-reduce of the model.
    """
    network = Network(
        hosts=4,
        devices=1,
        within=Link(bytes_per_second=1e10),
        between=Link(bytes_per_second=mbit_s * 1e6 / 8, latency_s=1e-4),
        processor=Processor(copy_bytes_per_second=3e11),
    )
    workload = Workload(parameters=PARAMETERS, step_s=step_s, optimizer="adam")
    settings = Settings(block_size=block_size)
    return 100 * predict("model_averaging", workload, network, settings).efficiency


def section() -> Section:
    """Return the section with all their cells."""
    return Section(
        title="LocalSGD, 4 x 1, measured by others",
        unit="% of the time",
        source="`cu_measured` of github.com/Adnan082/diloco-measured, one run per row",
        given="30.8M float32 parameters, the mean computation time of a step and the payload of "
        "the links in the same runs (24.5 to 25.7 ms; 99.2% of the rate), a latency of 0.1 ms and "
        "copies at 300 GB/s.",
        rows=[
            Comparison(
                name=f"H = {size}, {rate} Mbit/s",
                predicted=utilisation(size, PAYLOAD_SHARE * rate, STEP_S[size]),
                reference=reference,
            )
            for size, cells in UTILISATION.items()
            for rate, reference in cells.items()
        ],
        limit=0.30,
        remark="At 1 and 5 Gbit/s, the time of a synchronisation is within 8% of that of a ring. "
        "At 200 Mbit/s it is 11% longer and at 50 Mbit/s 28%, probably because the token bucket "
        "with a queue of 50 ms drops packets, which the planner does not model. The rows with "
        "H = 32 and 128 include the first synchronisation, in which NCCL connects (0.7 s). Those "
        "with H = 128 contain one synchronisation in 180 steps.",
    )
