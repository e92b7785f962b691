"""Tables of the report as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.model_parallel.held import KINDS, ON_DEVICE
from benchmarks.model_parallel.systems import SYSTEMS, System
from benchmarks.performance.figures import Figures, spread
from examples.tables import markdown

_LIMIT = "hosts without communication"

_COLUMNS: tuple[tuple[str, Callable[[Figures], float], int], ...] = (
    ("ms a step", lambda figures: 1e3 * figures.step_s, 0),
    ("ratio", lambda figures: figures.ratio, 2),
    ("ms of a step that ends no block", lambda figures: 1e3 * figures.between_s, 0),
    ("MB a host sends in a step", lambda figures: figures.host_bytes / 1e6, 2),
    ("MB in the largest step", lambda figures: (figures.peak_bytes or 0.0) / 1e6, 1),
)


def tables(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return all tables, by their names on the page.

    Args:
        lines: lines of the results: runs of systems, and memory for group sizes.

    """
    steps = [line for line in lines if "system" in line]
    return {
        "steps": step_table(steps),
        "memory": memory_table({line["ranks"]: line["found"] for line in lines if "ranks" in line}),
    }


def step_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of step times, with the median and the range of the runs of each system.

    Args:
        lines: runs of systems.

    """
    header = ("system", *(name for name, _, _ in _COLUMNS))
    header += ("least ratio, by the link", "memory of a rank, models")
    rows = [_limit_row(lines)]
    for system in SYSTEMS:
        runs = [line for line in lines if line["system"] == system.name]
        measured = [line for line in runs if "figures" in line]
        if measured:
            rows.append(_row(system, measured))
        elif runs:
            rows.append([system.title, f"failed: {runs[-1]['failed']}", *[""] * (len(header) - 2)])
    return markdown(header, rows)


def _row(system: System, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    figures = [Figures(**line["figures"]) for line in lines]
    cells = [spread([value(run) for run in figures], digits) for _, value, digits in _COLUMNS]
    least = [run.least_ratio(overlap=system.overlaps) for run in figures]
    return [system.title, *cells, spread(least), spread([line["live_models"] for line in lines])]


def _limit_row(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    measured = [line for line in lines if "figures" in line]
    if not measured:
        return [_LIMIT, *[""] * (len(_COLUMNS) + 2)]
    steps_ms = spread([1e3 * line["figures"]["control_s"] for line in measured], 0)
    live = spread([line["control_live_models"] for line in measured])
    return [_LIMIT, steps_ms, "1.00", steps_ms, "0.00", "0.0", "1.00", live]


def memory_table(by_group_size: Mapping[int, Sequence[Mapping[str, Mapping[str, float]]]]) -> str:
    """Return the table of memory by kind, for each strategy and group size.

    Args:
        by_group_size: readings of all ranks for each group size. A reading contains the memory of
            each kind, in models, for each strategy.

    """
    rows = []
    for title in next(iter(by_group_size.values()))[0]:
        for ranks, readings in by_group_size.items():
            means = [statistics.fmean(rank[title][kind] for rank in readings) for kind in KINDS]
            on_device = means[: len(ON_DEVICE)]
            cells = [f"{value:.2f}" for value in (*on_device, sum(on_device), means[-1])]
            rows.append([title, str(ranks), *cells])
    return markdown(("strategy", "ranks of a group", *ON_DEVICE, "sum", KINDS[-1]), rows)
