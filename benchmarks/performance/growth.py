"""Growth of cost with elements, ranks and density, which should be at most linear.

Times are processor time of a rank, because many ranks share few cores. The minimum of several
repetitions counts, because other load on the machine can only add to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.performance import plots
from benchmarks.performance.growth_ranks import Point
from benchmarks.performance.job import Network
from benchmarks.performance.rows import run_ranks
from benchmarks.performance.store import Store
from examples.tables import markdown

ELEMENTS = (10**6, 5 * 10**6, 2 * 10**7, 5 * 10**7, 2 * 10**8)
RANKS = (2, 4, 8, 16)
DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)

LARGEST_EXPONENT = 1.15
"""Largest allowed exponent. It is above 1, which is linear, because of caches and noise."""

_BYTES_AN_ELEMENT = 32
_COUNTED = ("gtc_s", "gtc_bytes", "bmuf_s", "bmuf_bytes")
_TITLES = {
    "gtc_s": "GTC step, processor s",
    "gtc_bytes": "GTC step, payload bytes of a rank",
    "bmuf_s": "BMUF synchronisation, processor s",
    "bmuf_bytes": "BMUF synchronisation, payload bytes of a rank",
}

Curves = dict[str, dict[str, list[tuple[float, float]]]]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the regression line of log y on log x: the exponent of a power law.

    Raises:
        ValueError: there are fewer than two different x, or a number is not positive.

    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    width = sum((x - mean_x) ** 2 for x, _ in logs)
    if width == 0:
        raise ValueError(f"growth needs two different sizes, got {points}")
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / width


def points_by_ranks(available_bytes: int) -> dict[int, list[Point]]:
    """Return the points to measure for each number of ranks, without those that exceed memory."""
    largest = available_bytes / (2 * _BYTES_AN_ELEMENT)
    sizes = [Point(elements=n, density=0.01) for n in ELEMENTS if n <= largest]
    densities = [Point(elements=10**7, density=density) for density in DENSITIES]
    one = [Point(elements=10**6, density=0.01)]
    return {ranks: sizes + densities if ranks == 2 else one for ranks in RANKS}


def measure(store: Store, folder: Path) -> None:
    """Measure the points missing in the store, write table and plots, and check the exponents.

    Raises:
        SystemExit: a cost grows faster than linearly.

    """
    for ranks, points in points_by_ranks(_available_bytes()).items():
        for point in points:
            key = f"{ranks}/{point.elements}/{point.density}"
            if key not in store:
                costs = _measure_point(ranks, point)
                store.add(key, {"ranks": ranks, **asdict(point), **costs})
                print(f"{ranks} ranks, {point.elements:,} elements, {point.density:.2%}: {costs}")
    measured = curves(store.lines())
    table, faults = growth_table(measured)
    (folder / "growth.md").write_text(table + "\n")
    plots.draw_growth(measured, folder)
    print(table)
    if faults:
        raise SystemExit("faster than linear: " + ", ".join(faults))


def curves(lines: Sequence[dict[str, Any]]) -> Curves:
    """Return the measured curves, by the quantity that grows and the cost."""

    def points(
        cause: str, less: float = 0.0, **fixed: float
    ) -> dict[str, list[tuple[float, float]]]:
        chosen = [line for line in lines if all(line[name] == fixed[name] for name in fixed)]
        return {
            _TITLES[counted]: sorted({(line[cause] - less, line[counted]) for line in chosen})
            for counted in _COUNTED
        }

    return {
        "elements": points("elements", ranks=2, density=0.01),
        # A rank sends to all others, whose number triples from 2 ranks to 4.
        "other ranks": points("ranks", less=1.0, elements=10**6, density=0.01),
        "density": points("density", elements=10**7, ranks=2),
    }


def growth_table(measured: Curves) -> tuple[str, list[str]]:
    """Return the exponents as a Markdown table, and a list of those that are too large."""
    rows, faults = [], []
    for cause, named in measured.items():
        for name, points in named.items():
            if len(points) < 2:
                continue
            power = exponent(points)
            linear = power <= LARGEST_EXPONENT
            rows.append((cause, name, f"{power:.2f}", "yes" if linear else "no"))
            if not linear:
                faults.append(f"{name} with {cause} (exponent {power:.2f})")
    return markdown(("variable", "cost", "exponent", "at most linear"), rows), faults


def _measure_point(ranks: int, point: Point) -> dict[str, float]:
    network = Network(hosts=1, ranks_per_host=ranks, rate=None, loopback=True)
    readings = run_ranks(
        network,
        "benchmarks.performance.growth_ranks",
        lambda folder: json.dumps(asdict(point) | {"folder": folder}),
    )
    return {name: max(reading[name] for reading in readings) for name in _COUNTED}


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/meminfo has no MemAvailable")
