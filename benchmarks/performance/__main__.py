"""Measure all synchronous strategies and comparable libraries; write tables and plots.

    python -m benchmarks.performance            everything once: takes more than an hour
    python -m benchmarks.performance --runs 5   everything five times, interleaved
    python -m benchmarks.performance --short    compare a few ratios with the committed ones
    python -m benchmarks.performance --publish  copy results from the output folder to docs/reports

Results are saved in the output folder after each launch of the ranks. An interrupted command
continues after the last one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import encoding
from benchmarks.hosts import needs_loopback
from benchmarks.performance import page, plots, sections, short
from benchmarks.performance.job import Network
from benchmarks.performance.results import Results
from benchmarks.performance.rows import measure_rows
from benchmarks.performance.store import Store
from benchmarks.performance.synchronisation import variants
from benchmarks.performance.systems import SYSTEMS, named
from benchmarks.performance.table import report
from benchmarks.performance.work import Work

_LAYOUTS, _RATES, _WORKS = ("2x2", "4x1"), ("1gbit", "100mbit"), ("emulated", "computed")
_PARTS = ("rows", "synchronisation", "between", "encoding")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/performance"), help="output folder"
    )
    parser.add_argument("--runs", type=int, default=1, help="number of runs")
    parser.add_argument("--blocks", type=int, default=1, help="measured blocks of a run")
    parser.add_argument("--layouts", nargs="+", default=_LAYOUTS, help="HOSTSxRANKS")
    parser.add_argument("--rates", nargs="+", default=_RATES, help="rates of the links, for tc")
    parser.add_argument("--works", nargs="+", default=_WORKS, choices=_WORKS)
    parser.add_argument("--parts", nargs="+", default=_PARTS, choices=_PARTS)
    parser.add_argument(
        "--systems", nargs="+", type=named, default=SYSTEMS, metavar="NAME", help="systems"
    )
    parser.add_argument("--short", action="store_true", help="compare with the committed ratios")
    parser.add_argument("--rewrite", action="store_true", help="with --short: save new ratios")
    parser.add_argument("--publish", action="store_true", help="only write the page of the docs")
    return parser.parse_args()


def measure_run(options: argparse.Namespace, store: Store, run: int, *, loopback: bool) -> None:
    """Run all selected measurements once. Results that are in the store are not measured again."""
    networks = [
        Network.read(layout, rate, loopback=loopback)
        for layout in options.layouts
        for rate in (options.rates if not loopback else ("none",))
    ]
    for network in networks:
        _measure_network(options, store, run, network)
    if "between" in options.parts:
        _keep(store, "between", run, lambda: sections.between(Work(), loopback=loopback))
    if "encoding" in options.parts:
        pairs = (encoding.SIZES, encoding.DENSITIES)
        _keep(store, "encoding", run, lambda: sections.encodings(*pairs))


def _measure_network(options: argparse.Namespace, store: Store, run: int, network: Network) -> None:
    if "rows" in options.parts:
        for kind in options.works:
            work = Work(kind=kind)
            measure_rows(options.systems, work, network, store, run=run, blocks=options.blocks)
    if "synchronisation" in options.parts:
        chosen = variants(network.ranks_per_host)
        name = sections.synchronisation_name(network)
        _keep(store, name, run, lambda: sections.synchronisations(network, Work(), chosen))


def _keep(store: Store, name: str, run: int, measure: Callable[[], Any]) -> None:
    key = f"section/{name}/{run}"
    if key not in store:
        store.add(key, {"section": name, "run": run, "found": measure()})
        print(f"run {run}, {name}: measured", flush=True)


def main() -> None:
    """Run the command."""
    options = parse_options()
    if options.publish:
        page.publish(options.out)
        return
    loopback = needs_loopback()
    if options.short:
        sys.exit(short.check(loopback=loopback, rewrite=options.rewrite))
    store = Store(options.out / "results.jsonl")
    for run in range(1, options.runs + 1):
        measure_run(options, store, run, loopback=loopback)
    results = Results(store.lines())
    (options.out / "report.md").write_text(report(results))
    plots.draw(results, options.out)
    print(report(results))


if __name__ == "__main__":
    main()
