"""Predictions of complete runs on emulated hosts: the rows of the performance report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from benchmarks.performance.figures import Figures
from benchmarks.performance.results import REPORTED, Results
from benchmarks.planner.comparison import Comparison, Section
from lightning_hier.planning import Network, Prediction, Settings, Workload, predict

_STREAMING: dict[str, Any] = {"fragments": 5, "overlap": 9}

SETTINGS: dict[str, tuple[str, Settings]] = {
    "ddp": ("ddp", Settings()),
    "ddp_fp16": ("ddp", Settings()),
    "gtc": ("gtc", Settings()),
    "model_averaging": ("model_averaging", Settings()),
    "bmuf": ("bmuf", Settings()),
    "bmuf_bf16": ("bmuf", Settings(across_dtype="bfloat16")),
    "bmuf_int8": ("bmuf", Settings(across_dtype="int8")),
    "bmuf_overlap": ("bmuf", Settings(overlap=True)),
    "bmuf_int8_overlap": ("bmuf", Settings(across_dtype="int8", overlap=True)),
    "bmuf_gtc": ("bmuf_gtc", Settings(group_size=2)),
    "bmuf_gtc_overlap": ("bmuf_gtc", Settings(group_size=2, overlap=True)),
    "bmuf_adam": ("bmuf_adam", Settings()),
    "diloco": ("diloco", Settings()),
    "diloco_streaming": ("diloco", Settings(**_STREAMING)),
    "diloco_streaming_int8": ("diloco", Settings(**_STREAMING, across_dtype="int8")),
    "diloco_streaming_sparse": (
        "diloco",
        Settings(**_STREAMING, across_dtype="int4", across_density=0.02),
    ),
}
"""Strategy and settings by the names of ``benchmarks.performance.systems``."""

_GIVEN = {
    "1 Gbit/s": "as for one synchronisation",
    "100 Mbit/s": "one core per host. When the machine had other work: 5.7 GB/s for copies, 0.9 "
    "GB/s per core through sockets (fitted to nine synchronisations of that time) and 456 MB/s "
    "between two ranks of a host",
}

_KINDS = {"2 x 2, 1gbit, emulated": "1 Gbit/s", "2 x 2, 100mbit, emulated": "100 Mbit/s"}


@cache
def results() -> Results:
    """Return the results that the performance report is based on."""
    return Results.of(REPORTED)


def sections(work: Workload, networks: Mapping[str, Network]) -> list[Section]:
    """Return sections on the time and bytes of all systems at both rates.

    Args:
        work: workload that was measured.
        networks: emulated hosts by rate. The bandwidth of their links is taken from each row.

    """
    measured = results()
    parts = []
    for kind, rate in _KINDS.items():
        rows = {name: _rows(measured, kind, name) for name in SETTINGS}
        available = {name: runs for name, runs in rows.items() if runs}
        if available:
            network = networks[rate]
            parts.append(_times(available, work, network, rate))
            # An overlapped exchange ends after the single block that was measured over 1 Gbit/s.
            whole = rate != "1 Gbit/s"
            sent = {n: r for n, r in available.items() if whole or not SETTINGS[n][1].overlap}
            parts.append(_bytes(sent, work, network, rate))
    return parts


def _rows(measured: Results, kind: str, name: str) -> list[Figures]:
    return list(measured.figures(kind, name).values())


def _predicted(name: str, work: Workload, network: Network, runs: Sequence[Figures]) -> Prediction:
    """Predict from the step without communication and the goodput of the same run."""
    between = replace(
        network.between, bytes_per_second=_median(runs, lambda row: row.goodput or inf)
    )
    step_s = _median(runs, lambda row: row.control_s)
    strategy, settings = SETTINGS[name]
    # The float16 hook halves the bytes sent.
    work = replace(work, step_s=step_s, element_bytes=2 if name == "ddp_fp16" else 4)
    return predict(strategy, work, replace(network, between=between), settings)


def _times(rows: dict[str, list[Figures]], work: Workload, network: Network, rate: str) -> Section:
    return Section(
        title=f"Complete runs, 2 x 2, {rate}",
        unit="ms per step",
        source=f"[performance](performance.md), {_runs(rows)}",
        given=f"{_GIVEN[rate]}; the step of the same ranks without communication, and the goodput "
        "of the link in the same runs. The 3.5 copies of the gradient that DDP's buckets cost GTC "
        "are fitted to its rows at both rates together.",
        rows=[
            Comparison(
                name=f"`{name}`",
                predicted=1e3 * _predicted(name, work, network, runs).step_s,
                reference=1e3 * _median(runs, lambda row: row.step_s),
            )
            for name, runs in rows.items()
        ],
        limit=0.20,
    )


def _bytes(rows: dict[str, list[Figures]], work: Workload, network: Network, rate: str) -> Section:
    return Section(
        title=f"Bytes of complete runs, 2 x 2, {rate}",
        unit="MB per host and step",
        source=f"[performance](performance.md), {_runs(rows)}",
        given="the settings only; the density of GTC is 1%.",
        rows=[
            Comparison(
                name=f"`{name}`",
                predicted=_predicted(name, work, network, runs).host_bytes / 1e6,
                reference=_median(runs, lambda row: row.host_bytes) / 1e6,
            )
            for name, runs in rows.items()
        ],
        limit=0.05,
    )


def _runs(rows: dict[str, list[Figures]]) -> str:
    counts = sorted({len(runs) for runs in rows.values()})
    text = " to ".join(map(str, [counts[0], *counts[1:][-1:]]))
    return "one run" if counts == [1] else f"median of {text} runs"


def _median(rows: Sequence[Figures], value: Callable[[Figures], float]) -> float:
    return statistics.median(value(row) for row in rows)
