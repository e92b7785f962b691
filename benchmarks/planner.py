"""Predictions of the planner beside the measurements of docs/reports/performance.md.

    python -m benchmarks.planner            replace the tables of docs/reports/planner.md
    python -m benchmarks.planner --check    fail if a prediction is further off than its limit

Nothing is measured: the references are the medians of the committed results.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from benchmarks.performance.figures import Figures
from benchmarks.performance.page import replace_tables
from benchmarks.performance.results import REPORTED, Results
from benchmarks.performance.synchronisation import Variant, variants
from examples.tables import markdown
from lightning_hier.planning import Link, Network, Processor, Settings, Workload, predict
from lightning_hier.planning.strategies import synchronisation_memory_bytes
from lightning_hier.planning.synchronisation import synchronise

REPORT = REPORTED.with_name("planner.md")

LSTM = Workload(parameters=24_305_007, step_s=0.15, name="LSTM of 24.3M")

HOSTS = Network(
    hosts=2,
    devices=2,
    within=Link(latency_s=5e-5, bytes_per_second=456e6),
    between=Link(latency_s=1e-4, bytes_per_second=119.6e6),
    processor=Processor(cores=1, copy_bytes_per_second=5.7e9, socket_bytes_per_second=1.5e9),
)
"""Two emulated hosts with two ranks each on two cores: one core per host."""

SETTINGS: dict[str, tuple[str, Settings]] = {
    "ddp": ("ddp", Settings()),
    "ddp_fp16": ("ddp", Settings()),
    "gtc": ("gtc", Settings()),
    "bmuf": ("bmuf", Settings()),
    "bmuf_int8": ("bmuf", Settings(across_dtype="int8")),
    "bmuf_overlap": ("bmuf", Settings(overlap=True)),
    "bmuf_int8_overlap": ("bmuf", Settings(across_dtype="int8", overlap=True)),
    "bmuf_gtc": ("bmuf_gtc", Settings(group_size=2)),
    "bmuf_gtc_overlap": ("bmuf_gtc", Settings(group_size=2, overlap=True)),
    "bmuf_adam": ("bmuf_adam", Settings()),
    "diloco": ("diloco", Settings()),
}
"""Strategy and settings by the names of ``benchmarks.performance.systems``."""


class Row(NamedTuple):
    """A predicted value and its reference."""

    name: str
    predicted: float
    reference: float

    @property
    def deviation(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.reference - 1


@dataclass(frozen=True, kw_only=True)
class Section:
    """Values predicted with the same parameters.

    Attributes:
        title: name of the table in the report.
        unit: unit of the values.
        rows: the values.
        limit: largest deviation allowed.

    """

    title: str
    unit: str
    rows: Sequence[Row]
    limit: float

    @property
    def missed(self) -> list[Row]:
        """Rows beyond the limit."""
        return [row for row in self.rows if abs(row.deviation) > self.limit]

    def table(self) -> str:
        """Return the rows as Markdown."""
        header = ("", f"predicted ({self.unit})", f"reference ({self.unit})", "deviation")
        return markdown(header, [
            (row.name, f"{row.predicted:.4g}", f"{row.reference:.4g}", f"{row.deviation:+.1%}")
            for row in self.rows
        ])  # fmt: skip


def sections() -> list[Section]:
    """Return all sections."""
    results = Results.of(REPORTED)
    return [
        *_synchronisations(results),
        *_whole_runs(results, "1 Gbit/s", "1gbit"),
        *_whole_runs(results, "100 Mbit/s", "100mbit"),
    ]


def _synchronisations(results: Results) -> list[Section]:
    """Compare the time and the memory of a single synchronisation."""
    runs = list(results.section("synchronisation, 2 x 2, 1gbit").values())

    def rows(value: str, predicted: Callable[[Settings], float]) -> list[Row]:
        return [
            Row(
                variant.name,
                predicted(variant.planner_settings()),
                statistics.median(run[variant.name][value] for run in runs),
            )
            for variant in measured
        ]

    def models(settings: Settings) -> float:
        return synchronisation_memory_bytes(LSTM, HOSTS, settings) / LSTM.model_bytes

    measured: list[Variant] = [
        variant for variant in variants(HOSTS.devices) if all(variant.name in run for run in runs)
    ]
    times = rows("seconds", lambda settings: synchronise(LSTM, HOSTS, settings).blocking_s)
    return [
        Section(title="One synchronisation, 2 x 2, 1 Gbit/s", unit="s", rows=times, limit=0.20),
        Section(
            title="Memory of block synchronisation, 2 x 2",
            unit="models",
            rows=rows("extra_models", models),
            limit=0.01,
        ),
    ]


def _whole_runs(results: Results, rate: str, limit: str) -> list[Section]:
    """Compare the time and the bytes of a step in whole runs.

    The step without communication and the goodput of the link are those of the same runs.
    """
    times, sent = [], []
    for name, (strategy, settings) in SETTINGS.items():
        runs = list(results.figures(f"2 x 2, {limit}, emulated", name).values())
        if not runs:
            continue
        goodput = _median(runs, lambda run: run.goodput or inf)
        # The float16 hook halves the bytes sent.
        work = replace(
            LSTM,
            step_s=_median(runs, lambda run: run.control_s),
            element_bytes=2 if name == "ddp_fp16" else 4,
        )
        between = replace(HOSTS.between, bytes_per_second=goodput)
        expected = predict(strategy, work, replace(HOSTS, between=between), settings)
        title = f"`{name}`"
        times.append(Row(title, 1e3 * expected.step_s, 1e3 * _median(runs, lambda run: run.step_s)))
        # An overlapped exchange ends after the single block that was measured over 1 Gbit/s.
        if rate != "1 Gbit/s" or not settings.overlap:
            measured = _median(runs, lambda run: run.host_bytes)
            sent.append(Row(title, expected.host_bytes / 1e6, measured / 1e6))
    of = f"2 x 2, {rate}"
    return [
        Section(title=f"Complete runs, {of}", unit="ms per step", rows=times, limit=0.20),
        Section(
            title=f"Bytes of complete runs, {of}",
            unit="MB per host and step",
            rows=sent,
            limit=0.05,
        ),
    ]


def _median(runs: Sequence[Figures], value: Callable[[Figures], float]) -> float:
    return statistics.median(map(value, runs))


def report(page: str) -> str:
    """Return the report with its tables replaced."""
    parts = sections()
    rows = [
        (part.title, f"{part.limit:.0%}", f"{max(abs(row.deviation) for row in part.rows):.1%}")
        for part in parts
    ]
    tables = {"largest deviations": markdown(("", "limit", "largest deviation"), rows)}
    return replace_tables(page, tables | {part.title: part.table() for part in parts})


def main() -> None:
    """Write the report or check the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        REPORT.write_text(report(REPORT.read_text()))
        print(f"wrote {REPORT}")
        return
    missed = [f"{part.title}: {row.name} {row.deviation:+.1%}" for part in sections()
              for row in part.missed]  # fmt: skip
    print("\n".join(missed) or "all predictions are within their limits")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
