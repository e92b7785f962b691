"""Our measurements on emulated hosts."""

from __future__ import annotations

import statistics
from dataclasses import replace
from math import comb

from benchmarks.performance.synchronisation import Variant, variants
from benchmarks.planner import elsewhere, whole_runs
from benchmarks.planner.comparison import Comparison, Section
from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict
from lightning_hier.planning.strategies import synchronisation_memory_bytes
from lightning_hier.planning.synchronisation import synchronise

LSTM = Workload(parameters=24_305_007, step_s=0.15, name="LSTM of 24.3M")

HOSTS = Network(
    hosts=2,
    devices=2,
    within=Link(latency_s=5e-5, bytes_per_second=456e6),
    between=Link(latency_s=1e-4, bytes_per_second=119.6e6),
    processor=Processor(cores=1, copy_bytes_per_second=5.7e9, socket_bytes_per_second=0.9e9),
)
"""Two emulated hosts with two ranks each on two cores: one core per host."""

QUIET_HOSTS = replace(
    HOSTS,
    within=replace(HOSTS.within, bytes_per_second=800e6),
    processor=Processor(cores=1, copy_bytes_per_second=12e9, socket_bytes_per_second=3e9),
)
"""The same hosts on a quiet machine, on which everything over 1 Gbit/s was measured later."""

_GIVEN = (
    "the goodput of the link in the same runs (119.6 MB/s), and one core per host. On a quiet "
    "machine: 12 GB/s for copies (8 ms for the model), 3 GB/s per core through sockets and 800 "
    "MB/s between two ranks of a host. The three values are fitted to the twelve synchronisations "
    "and the complete runs over 1 Gbit/s together, the two copies per gather to an earlier nine."
)

FRAMES = 256
TWO_STAGE = {
    "devices that wait": {
        (1, True): 5231, (2, True): 5401, (4, True): 5387, (8, True): 5421,
        (1, False): 1257, (2, False): 2106, (4, False): 2962, (8, False): 3797,
    },
    "devices on a core": {
        (1, True): 4903, (2, True): 4375, (4, True): 4917, (8, True): 5135,
        (1, False): 1240, (2, False): 2020, (4, False): 2953, (8, False): 3905,
    },
}  # fmt: skip
"""Frames/s by push period and double buffering."""

_TWO_STAGE_PARAMETERS = 4_025_000
_TWO_STAGE_ALONE = {"devices that wait": 3131.0, "devices on a core": 3238.0}
# Speed of two independent ranks relative to twice the speed of one.
_TWO_STAGE_EFFICIENCY = {"devices that wait": 1.0, "devices on a core": 0.915}

LATE = {(1.0, 1.0): 1.43, (7 / 8, 1.0): 1.19, (7 / 8, 7 / 8): 0.99, (5 / 8, 3 / 4): 0.96}
"""Epoch time of PSP-SGD with late replies relative to that without, by c / N and b."""


def sections() -> list[Section]:
    """Return all sections."""
    return [
        _synchronisations(),
        *whole_runs.sections(LSTM, {"1 Gbit/s": QUIET_HOSTS, "100 Mbit/s": HOSTS}),
        _memory(),
        *[_two_stage(kind) for kind in TWO_STAGE],
        _late_replies(),
        elsewhere.section(),
    ]


def _runs() -> list[dict[str, dict[str, float]]]:
    return list(whole_runs.results().section("synchronisation, 2 x 2, 1gbit").values())


def _variants() -> list[Variant]:
    """Return the variants that the runs of the report have."""
    return [v for v in variants(HOSTS.devices) if all(v.name in run for run in _runs())]


def _reference(variant: Variant, value: str) -> float:
    """Return the median over the runs of the report."""
    return statistics.median(run[variant.name][value] for run in _runs())


def _synchronisations() -> Section:
    return Section(
        title="One synchronisation, 2 x 2, 1 Gbit/s",
        unit="s",
        source="[performance](performance.md), median of five runs",
        given=_GIVEN,
        rows=[
            Comparison(
                name=variant.name,
                predicted=synchronise(LSTM, QUIET_HOSTS, variant.planner_settings()).blocking_s,
                reference=_reference(variant, "seconds"),
            )
            for variant in _variants()
        ],
        limit=0.20,
    )


def _memory() -> Section:
    return Section(
        title="Memory of block synchronisation, 2 x 2",
        unit="models",
        source="[performance](performance.md), tensors in addition to the model",
        given="the settings only.",
        rows=[
            Comparison(
                name=variant.name,
                predicted=synchronisation_memory_bytes(LSTM, HOSTS, variant.planner_settings())
                / LSTM.model_bytes,
                reference=_reference(variant, "extra_models"),
            )
            for variant in _variants()
        ],
        limit=0.01,
    )


def _two_stage(kind: str) -> Section:
    alone_s = FRAMES / _TWO_STAGE_ALONE[kind]
    work = Workload(
        parameters=_TWO_STAGE_PARAMETERS,
        step_s=alone_s / _TWO_STAGE_EFFICIENCY[kind],
        optimizer="sgd",
        on_cores=kind == "devices on a core",
    )
    network = replace(HOSTS, devices=1, between=replace(HOSTS.between, bytes_per_second=119.3e6))
    rows = []
    for (period, buffering), reference in TWO_STAGE[kind].items():
        settings = Settings(push_period=period, double_buffering=buffering)
        step_s = predict("two_stage_asgd", work, network, settings).step_s
        name = f"N = {period}, {'with' if buffering else 'without'} buffering"
        speed = network.ranks * FRAMES / step_s
        rows.append(Comparison(name=name, predicted=speed, reference=reference))
    by_itself = "" if not work.on_cores else ", of which two independent ranks keep 0.915"
    return Section(
        title=f"Two-stage ASGD, 2 x 1, 1 Gbit/s, {kind}",
        unit="frames/s",
        source="[two-stage ASGD](two_stage_asgd.md), median of five repetitions",
        given=f"the speed of a single rank ({_TWO_STAGE_ALONE[kind]:,.0f} frames/s){by_itself}; "
        "119.3 MB/s of the link; copies and sockets as above.",
        rows=rows,
        limit=0.20,
    )


def _late_replies() -> Section:
    step_s, share, late_s, ranks = 0.272, 0.007, 0.33, 8
    rows = []
    for (pushes, pulled), reference in LATE.items():
        waited_s = _late_wait_s(
            ranks,
            min_pushes=round(pushes * ranks),
            min_pulled=round(pulled * ranks),
            late_share=share,
            late_s=late_s,
        )
        predicted = 1 + waited_s / step_s
        name = f"c = {pushes * ranks:g}, b = {pulled:.0%}"
        rows.append(Comparison(name=name, predicted=predicted, reference=reference))
    return Section(
        title="PSP-SGD with late replies, 8 ranks",
        unit="relative to no delays",
        source="[stragglers](stragglers.md), median epoch",
        given="a step of 0.272 s; 0.7% of the replies are 0.33 s late.",
        rows=rows,
        limit=0.20,
        remark="The delay is fitted to the row with c = 8 (1.43), so that row is no evidence.",
    )


def _late_wait_s(
    ranks: int, *, min_pushes: int, min_pulled: int, late_share: float, late_s: float
) -> float:
    """Return the mean wait of a step: P(too many workers are late for a server) times the delay.

    A worker is late if fewer than ``min_pulled`` of its replies are on time.

    Args:
        ranks: number N of workers and of blocks.
        min_pushes: number c of workers whose gradients a server needs.
        min_pulled: number of blocks that a worker needs.
        late_share: fraction of the replies that are late.
        late_s: delay of a late reply in seconds.

    """
    worker_late = _more_than(ranks - min_pulled, ranks, late_share)
    return _more_than(ranks - min_pushes, ranks, worker_late) * late_s


def _more_than(spare: int, number: int, chance: float) -> float:
    """Return P(X > spare) of the binomial distribution."""
    return sum(
        comb(number, k) * chance**k * (1 - chance) ** (number - k)
        for k in range(spare + 1, number + 1)
    )
