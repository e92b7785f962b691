"""How cost grows with elements, ranks and density, and that it grows no faster than they do.

Times are processor time of a rank, since many ranks share few cores here; the least of several
repetitions, since what else the machine does can only add.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance import plots
from benchmarks.performance.growth_ranks import Point
from benchmarks.performance.job import Network
from benchmarks.performance.rows import ranks_do
from benchmarks.performance.store import Store
from examples.tables import markdown

ELEMENTS = (10**6, 5 * 10**6, 2 * 10**7, 5 * 10**7, 2 * 10**8)
RANKS = (2, 4, 8, 16)
DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)

LARGEST_EXPONENT = 1.15
"""Cost may grow as this power at most; 1 is linear, the rest is for caches and the machine."""

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
    """The power with which the second number grows: the slope where both axes are logarithmic.

    Raises:
        ValueError: fewer than two different first numbers, or a number that is not above 0.

    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    width = sum((x - mean_x) ** 2 for x, _ in logs)
    if width == 0:
        raise ValueError(f"growth needs two different sizes, got {points}")
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / width


def points_by_ranks(available_bytes: int) -> dict[int, list[Point]]:
    """What is measured with how many ranks; sizes that memory does not hold are left out."""
    largest = available_bytes / (2 * _BYTES_AN_ELEMENT)
    sizes = [Point(elements=n, density=0.01) for n in ELEMENTS if n <= largest]
    densities = [Point(elements=10**7, density=density) for density in DENSITIES]
    one = [Point(elements=10**6, density=0.01)]
    return {ranks: sizes + densities if ranks == 2 else one for ranks in RANKS}


def measure(store: Store, folder: Path) -> None:
    """Measure what the store lacks, write the table and the plots, and check the exponents.

    Raises:
        SystemExit: something grows faster than linearly.

    """
    for ranks, points in points_by_ranks(_available_bytes()).items():
        for point in points:
            key = f"{ranks}/{point.elements}/{point.density}"
            if key not in store:
                found = _measured(ranks, point)
                store.add(key, {"ranks": ranks, **point.told(), **found})
                print(f"{ranks} ranks, {point.elements:,} elements, {point.density:.2%}: {found}")
    found_curves = curves(store.lines())
    table, faults = growth_table(found_curves)
    (folder / "growth.md").write_text(table + "\n")
    plots.draw_growth(found_curves, folder)
    print(table)
    if faults:
        raise SystemExit("faster than linear: " + ", ".join(faults))


def curves(lines: Sequence[dict[str, Any]]) -> Curves:
    """By what grows, then by what is counted."""

    def points(
        cause: str, less: float = 0.0, **fixed: float
    ) -> dict[str, list[tuple[float, float]]]:
        own = [line for line in lines if all(line[name] == value for name, value in fixed.items())]
        return {
            _TITLES[counted]: sorted({(line[cause] - less, line[counted]) for line in own})
            for counted in _COUNTED
        }

    return {
        "elements": points("elements", ranks=2, density=0.01),
        # Whom a rank has to send to; from 2 ranks to 4 they are three times as many.
        "other ranks": points("ranks", less=1.0, elements=10**6, density=0.01),
        "density": points("density", elements=10**7, ranks=2),
    }


def growth_table(found: Curves) -> tuple[str, list[str]]:
    """Exponents as Markdown, and which are too large."""
    rows, faults = [], []
    for cause, named in found.items():
        for name, points in named.items():
            if len(points) < 2:
                continue
            power = exponent(points)
            linear = power <= LARGEST_EXPONENT
            rows.append((cause, name, f"{power:.2f}", "yes" if linear else "no"))
            if not linear:
                faults.append(f"{name} with {cause} (exponent {power:.2f})")
    return markdown(
        ("what grows", "what it costs", "exponent", "no worse than linear"), rows
    ), faults


def _measured(ranks: int, point: Point) -> dict[str, float]:
    network = Network(hosts=1, ranks_per_host=ranks, rate=None, loopback=True)
    found = ranks_do(
        network,
        "benchmarks.performance.growth_ranks",
        lambda folder: json.dumps(point.told() | {"folder": folder}),
    )
    return {name: max(own[name] for own in found) for name in _COUNTED}


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/meminfo has no MemAvailable")
