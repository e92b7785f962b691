"""Tables of the report as Markdown."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from benchmarks.encoding import Encoding
from benchmarks.encoding import table as encoding_table
from benchmarks.performance.figures import Figures
from benchmarks.performance.job import Network
from benchmarks.performance.results import Results
from benchmarks.performance.sections import synchronisation_name
from benchmarks.performance.systems import SYSTEMS
from benchmarks.performance.work import Work
from examples.tables import markdown, spread
from lightning_hier import __version__

_COLUMNS: tuple[tuple[str, Callable[[Figures], float | None], int], ...] = (
    ("ms a step", lambda figures: 1e3 * figures.step_s, 0),
    ("of the limit", lambda figures: figures.ratio, 2),
    ("communication %", lambda figures: 100 * figures.communication_share, 0),
    ("link, ms", lambda figures: 1e3 * figures.link_s, 0),
    ("ms between", lambda figures: 1e3 * figures.between_s, 0),
    ("synchronisation s", lambda figures: figures.synchronisation_s, 2),
    ("MB a host and step", lambda figures: figures.host_bytes / 1e6, 2),
    ("MB in the largest step", lambda figures: _megabytes(figures.peak_bytes), 2),
    ("memory, models", lambda figures: _models(figures.extra_bytes), 1),
    ("density %", lambda figures: None if figures.density is None else 100 * figures.density, 2),
)


def _models(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / Work().model_bytes


def _megabytes(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 1e6


def report(results: Results) -> str:
    """Return the report of all results as Markdown."""
    parts = [_heading(results)]
    for name, table in tables(results).items():
        parts += [f"## {name[0].upper()}{name[1:]}", table]
    return "\n\n".join(parts) + "\n"


def tables(results: Results) -> dict[str, str]:
    """Return all tables by name: systems on each network and work, other sections."""
    named = {kind: systems_table(results, kind) for kind in results.kinds}
    named |= _synchronisations(results)
    between = list(results.section("between").values())
    if between:
        named["step between synchronisations"] = _between_table(between)
    encodings = list(results.section("encoding").values())
    if encodings:
        named["encoding"] = _encodings(encodings)
    return named


def systems_table(results: Results, kind: str) -> str:
    """Return the table of all systems on one network and work, with the reasons of failures."""
    rows = []
    failures = []
    for system in SYSTEMS:
        runs = list(results.figures(kind, system.name).values())
        if runs:
            largest = "" if system.family == "limit" else _largest(runs)
            rows.append((system.title, str(len(runs)), *_cells(runs), largest))
            continue
        failure = results.failure(kind, system.name)
        if failure is not None:
            failures.append(f"- {system.title}: {system.expected_failure or failure}")
    header = ("system", "runs", *(name for name, _, _ in _COLUMNS), "largest to median")
    shown = [column for column in range(len(header)) if any(row[column] for row in rows)]
    table = markdown(
        [header[column] for column in shown], [[row[column] for column in shown] for row in rows]
    )
    return "\n\n".join([table, "\n".join(failures)]) if failures else table


def _cells(runs: Sequence[Figures]) -> list[str]:
    cells = []
    for _, value, digits in _COLUMNS:
        values = [number for run in runs if (number := value(run)) is not None]
        cells.append(spread(values, digits) if values else "")
    return cells


def _largest(runs: Sequence[Figures]) -> str:
    """Return the longest synchronisation of all runs relative to their median."""
    seconds = [s for run in runs for s in run.synchronisations_s]
    return f"{max(seconds) / statistics.median(seconds):.2f}" if seconds else ""


def _synchronisations(results: Results) -> dict[str, str]:
    named = {}
    for layout in ("2x1", "2x2", "4x1"):
        for rate in ("1gbit", "100mbit"):
            name = synchronisation_name(Network.read(layout, rate))
            runs = list(results.section(name).values())
            if runs:
                named[name] = _synchronisation_table(runs)
    return named


def _synchronisation_table(runs: Sequence[dict[str, dict[str, float]]]) -> str:
    columns = (("seconds", 3), ("wire_s", 3), ("ratio", 2), ("host_models", 2),
               ("extra_models", 2), ("extra_resident_models", 2))  # fmt: skip
    header = ("variant", "seconds", "wire time, float32", "ratio",
              "models a host sends", "extra memory, models", "resident")  # fmt: skip
    rows = [
        (name, *(spread([run[name][key] for run in runs if name in run], digits)
                 for key, digits in columns))
        for name in dict.fromkeys(name for run in runs for name in run)
    ]  # fmt: skip
    return markdown(header, rows)


def _between_table(runs: Sequence[dict[str, float]]) -> str:
    cells = [
        spread([run[key] for run in runs], digits)
        for key, digits in (("ratio", 3), ("processor_ratio", 3), ("added_ms", 1))
    ]
    header = ("to the bare step", "by processor time", "added ms")
    return markdown(header, [cells])


def _encodings(runs: Sequence[Sequence[dict[str, Any]]]) -> str:
    return encoding_table(
        [
            [Encoding(**{k: v for k, v in fields.items() if k != "ratio"}) for fields in run]
            for run in runs
        ]
    )


def _heading(results: Results) -> str:
    work = Work()
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    return (
        f"{work.parameters / 1e6:.1f} million parameters in float32, "
        f"{1e3 * work.step_s:.0f} ms a step on an emulated device; median of the runs, and of "
        "several runs the smallest and the largest value.\n"
        f"Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}, lightning_hier {__version__}, {platform.machine()}, "
        f"{cores} cores."
    )
