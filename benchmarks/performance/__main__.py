"""Measure every synchronous strategy and its peers on the same work; write tables and plots.

    python -m benchmarks.performance            everything, once: more than an hour
    python -m benchmarks.performance --runs 5   everything five times, interleaved
    python -m benchmarks.performance --short    a few ratios against those that are committed
    python -m benchmarks.performance --growth   how cost grows with elements, ranks and density
    python -m benchmarks.performance --publish  what the output folder has, into docs/reports

Results are kept row by row in the output folder, and the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import encoding
from benchmarks.hosts import needs_loopback
from benchmarks.performance import growth, page, plots, sections, short
from benchmarks.performance.job import Network
from benchmarks.performance.results import Results
from benchmarks.performance.rows import measure_rows
from benchmarks.performance.store import Store
from benchmarks.performance.synchronisation import variants
from benchmarks.performance.systems import SYSTEMS, named
from benchmarks.performance.table import report
from benchmarks.performance.targets import synchronisation_name
from benchmarks.performance.work import Work

_LAYOUTS, _RATES, _WORKS = ("2x2", "4x1"), ("1gbit", "100mbit"), ("emulated", "computed")
_PARTS = ("rows", "synchronisation", "between", "encoding")


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/performance"), help="folder")
    parser.add_argument("--runs", type=int, default=1, help="of everything")
    parser.add_argument("--blocks", type=int, default=1, help="that are measured in each run")
    parser.add_argument("--layouts", nargs="+", default=_LAYOUTS, help="HOSTSxRANKS")
    parser.add_argument("--rates", nargs="+", default=_RATES, help="as tc reads them")
    parser.add_argument("--works", nargs="+", default=_WORKS, choices=_WORKS)
    parser.add_argument("--parts", nargs="+", default=_PARTS, choices=_PARTS)
    parser.add_argument(
        "--systems", nargs="+", type=named, default=SYSTEMS, metavar="NAME", help="rows"
    )
    parser.add_argument("--short", action="store_true", help="compare with the committed ratios")
    parser.add_argument("--rewrite", action="store_true", help="with --short: commit new ones")
    parser.add_argument("--growth", action="store_true", help="how cost grows")
    parser.add_argument("--publish", action="store_true", help="measure nothing, write the page")
    return parser.parse_args()


def measure_run(told: argparse.Namespace, store: Store, run: int, *, loopback: bool) -> None:
    """Everything that was asked for, once; what the store has is left out."""
    networks = [
        Network.read(layout, rate, loopback=loopback)
        for layout in told.layouts
        for rate in (told.rates if not loopback else ("none",))
    ]
    for network in networks:
        _measure_network(told, store, run, network)
    if "between" in told.parts:
        _keep(store, "between", run, lambda: sections.between(Work(), loopback=loopback))
    if "encoding" in told.parts:
        pairs = (encoding.SIZES, encoding.DENSITIES)
        _keep(store, "encoding", run, lambda: sections.encodings(*pairs))


def _measure_network(told: argparse.Namespace, store: Store, run: int, network: Network) -> None:
    if "rows" in told.parts:
        for kind in told.works:
            work = Work(kind=kind)
            measure_rows(told.systems, work, network, store, run=run, blocks=told.blocks)
    if "synchronisation" in told.parts:
        chosen = variants(network.ranks_per_host)
        name = synchronisation_name(network)
        _keep(store, name, run, lambda: sections.synchronisations(network, Work(), chosen))


def _keep(store: Store, name: str, run: int, measure: Callable[[], Any]) -> None:
    key = f"section/{name}/{run}"
    if key not in store:
        store.add(key, {"section": name, "run": run, "found": measure()})
        print(f"run {run}, {name}: measured", flush=True)


def main() -> None:
    """Do what the command line says."""
    told = options()
    if told.publish:
        page.publish(told.out)
        return
    loopback = needs_loopback()
    if told.short:
        sys.exit(short.check(loopback=loopback, rewrite=told.rewrite))
    if told.growth:
        growth.measure(Store(told.out / "growth.jsonl"), told.out)
        return
    store = Store(told.out / "results.jsonl")
    for run in range(1, told.runs + 1):
        measure_run(told, store, run, loopback=loopback)
    results = Results(store.lines())
    (told.out / "report.md").write_text(report(results))
    plots.draw(results, told.out)
    print(report(results))


if __name__ == "__main__":
    main()
