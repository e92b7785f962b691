"""The report's tables, as Markdown."""

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
from benchmarks.performance.figures import Figures, spread
from benchmarks.performance.job import Network
from benchmarks.performance.results import Results
from benchmarks.performance.systems import SYSTEMS
from benchmarks.performance.targets import synchronisation_name, targets_table
from benchmarks.performance.work import Work
from examples.tables import markdown
from lightning_hier import __version__

_COLUMNS: tuple[tuple[str, Callable[[Figures], float | None], int], ...] = (
    ("ms a step", lambda own: 1e3 * own.step_s, 0),
    ("of the limit", lambda own: own.ratio, 2),
    ("communication %", lambda own: 100 * own.communication_share, 0),
    ("link, ms", lambda own: 1e3 * own.link_s, 0),
    ("ms between", lambda own: 1e3 * own.between_s, 0),
    ("synchronisation s", lambda own: own.synchronisation_s, 2),
    ("MB a host and step", lambda own: own.host_bytes / 1e6, 2),
    ("MB in the largest step", lambda own: _megabytes(own.peak_bytes), 2),
    ("memory, models", lambda own: _models(own.extra_bytes), 1),
    ("density %", lambda own: None if own.density is None else 100 * own.density, 2),
)


def _models(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / Work().model_bytes


def _megabytes(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 1e6


def report(results: Results) -> str:
    """Everything that has been measured."""
    parts = [_heading(results)]
    for name, table in tables(results).items():
        parts += [f"## {name[0].upper()}{name[1:]}", table]
    return "\n\n".join(parts) + "\n"


def tables(results: Results) -> dict[str, str]:
    """All tables, each by its name: targets, then every network and work, then the other parts."""
    found = {"targets": targets_table(results)}
    found |= {kind: systems_table(results, kind) for kind in results.kinds}
    found |= _synchronisations(results)
    between = list(results.section("between").values())
    if between:
        found["step between synchronisations"] = _between_table(between)
    encodings = list(results.section("encoding").values())
    if encodings:
        found["encoding"] = _encodings(encodings)
    return found


def systems_table(results: Results, kind: str) -> str:
    """All systems on one network and work; those that failed say why."""
    rows = []
    failures = []
    for system in SYSTEMS:
        found = list(results.figures(kind, system.name).values())
        if found:
            rows.append((system.title, str(len(found)), *_cells(found), _largest(found)))
            continue
        failure = results.failure(kind, system.name)
        if failure is not None:
            failures.append(f"- {system.title}: {system.expected_failure or failure}")
    header = ("system", "runs", *(name for name, _, _ in _COLUMNS), "largest to median")
    shown = [place for place in range(len(header)) if any(row[place] for row in rows)]
    table = markdown(
        [header[place] for place in shown], [[row[place] for place in shown] for row in rows]
    )
    return "\n\n".join([table, "\n".join(failures)]) if failures else table


def _cells(found: Sequence[Figures]) -> list[str]:
    cells = []
    for _, value, digits in _COLUMNS:
        values = [read for own in found if (read := value(own)) is not None]
        cells.append(spread(values, digits) if values else "")
    return cells


def _largest(runs: Sequence[Figures]) -> str:
    """The longest synchronisation of all runs relative to their median."""
    taken = [seconds for own in runs for seconds in own.synchronisations_s]
    return f"{max(taken) / statistics.median(taken):.2f}" if taken else ""


def _synchronisations(results: Results) -> dict[str, str]:
    found = {}
    for layout in ("2x1", "2x2", "4x1"):
        for rate in ("1gbit", "100mbit"):
            name = synchronisation_name(Network.read(layout, rate))
            runs = list(results.section(name).values())
            if runs:
                found[name] = _synchronisation_table(runs)
    return found


def _synchronisation_table(runs: Sequence[dict[str, dict[str, float]]]) -> str:
    columns = (("seconds", 3), ("wire_s", 3), ("ratio", 2), ("host_models", 2),
               ("extra_models", 2), ("extra_resident_models", 2))  # fmt: skip
    header = ("who carries the model", "seconds", "wire time, float32", "ratio",
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
            [Encoding(**{k: v for k, v in own.items() if k != "ratio"}) for own in found]
            for found in runs
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
