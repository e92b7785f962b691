"""Measure step times, bytes and memory of modules that FSDP2 shards inside hosts.

    python -m benchmarks.model_parallel             everything once: takes about five minutes
    python -m benchmarks.model_parallel --runs 2    step times twice, interleaved
    python -m benchmarks.model_parallel --short     quick check with a small model and short blocks
    python -m benchmarks.model_parallel --publish   copy results of the output folder to the docs

There are two hosts of two ranks, with a link of 1 Gbit/s each. Results are saved in the output
folder. An interrupted command continues with the next result.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import lightning
import torch

from benchmarks.hosts import needs_loopback
from benchmarks.model_parallel import page
from benchmarks.model_parallel.memory_ranks import GROUPS
from benchmarks.model_parallel.module import Size
from benchmarks.model_parallel.systems import SYSTEMS, System, named, unavailable_reason
from benchmarks.model_parallel.table import tables
from benchmarks.performance.figures import figures
from benchmarks.performance.job import Network, goodput_bytes
from benchmarks.performance.rows import run_ranks, summary
from benchmarks.performance.store import Store
from lightning_hier import __version__

_GROUP_SIZES = (1, 2, 4)
_BLOCK_SIZE, _SHORT_BLOCK_SIZE = 50, 10
_SHORT = Size(width=64)
_LIMIT_S = 300.0


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="output folder (outputs/model_parallel)")
    parser.add_argument("--runs", type=int, default=1, help="runs of every system")
    parser.add_argument("--rate", default="1gbit", help="rate of every link, for tc")
    parser.add_argument(
        "--systems", nargs="*", type=named, default=SYSTEMS, metavar="NAME", help="systems"
    )
    parser.add_argument("--short", action="store_true", help="a small model, blocks of 10 steps")
    parser.add_argument("--publish", action="store_true", help="only write the page of the docs")
    options = parser.parse_args()
    # Results of a short run are kept in another folder, because they are not comparable.
    options.out = options.out or Path(f"outputs/model_parallel{'_short' * options.short}")
    return options


def measure_row(system: System, network: Network, size: Size, block_size: int) -> dict[str, Any]:
    """Run one system once. Return its figures, or the error of the run."""
    settings = {
        "system": system.name,
        "network": asdict(network),
        "size": asdict(size),
        "block_size": block_size,
        "goodput_bytes": goodput_bytes(network),
    }

    def argument(folder: str) -> str:
        return json.dumps({**settings, "folder": folder})

    try:
        readings = run_ranks(network, "benchmarks.model_parallel.rank", argument, limit_s=_LIMIT_S)
    except (RuntimeError, TimeoutError) as error:
        return {"failed": summary(error)}
    computed = asdict(figures(readings, 1 if system.every_step else block_size))
    return {"figures": computed, **_means(readings, "live_models", "control_live_models")}


def _means(readings: Sequence[Mapping[str, float]], *names: str) -> dict[str, float]:
    return {name: fmean(reading[name] for reading in readings) for name in names}


def measure_steps(options: argparse.Namespace, store: Store, network: Network) -> None:
    """Run all systems, except runs that are in the store."""
    size = _SHORT if options.short else Size()
    block_size = _SHORT_BLOCK_SIZE if options.short else _BLOCK_SIZE
    for run in range(1, options.runs + 1):
        for system in options.systems:
            key, missing = f"row/{system.name}/{run}", unavailable_reason(system)
            if missing is not None:
                print(f"{system.title}: skipped, {missing}", flush=True)
            elif key not in store:
                row = measure_row(system, network, size, block_size)
                store.add(key, {"system": system.name, "run": run, **row})
                print(f"run {run}, {system.title}: measured", flush=True)


def measure_memory(store: Store) -> None:
    """Measure the memory of each rank for all group sizes, except those in the store."""
    for ranks in _GROUP_SIZES:
        if (key := f"memory/{ranks}") not in store:
            network = Network(hosts=GROUPS, ranks_per_host=ranks, rate=None, loopback=True)
            module = "benchmarks.model_parallel.memory_ranks"
            readings = run_ranks(network, module, str, limit_s=_LIMIT_S)
            store.add(key, {"ranks": ranks, "found": readings})


def main() -> None:
    """Run the command."""
    options = parse_options()
    if options.publish:
        page.publish(options.out)
        return
    network = Network.read("2x2", options.rate, loopback=needs_loopback())
    store = Store(options.out / page.RESULTS)
    measure_memory(store)
    measure_steps(options, store, network)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, "
    versions += f"Lightning {lightning.__version__}, lightning_hier {__version__}"
    print("\n\n".join([versions, *tables(store.lines()).values()]))


if __name__ == "__main__":
    main()
