"""Measure modules that are divided inside hosts: step times over a slow link, bytes, and memory.

    python -m benchmarks.model_parallel             everything, once: about five minutes
    python -m benchmarks.model_parallel --runs 2    step times twice, interleaved
    python -m benchmarks.model_parallel --short     a small model in short blocks: does it run?
    python -m benchmarks.model_parallel --publish   what the output folder has, into docs/reports

Two hosts of two ranks, each behind a link of 1 Gbit/s. Results are kept in the output folder, and
the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import torch

from benchmarks.hosts import needs_loopback
from benchmarks.model_parallel import page
from benchmarks.model_parallel.memory_ranks import GROUPS
from benchmarks.model_parallel.module import Size
from benchmarks.model_parallel.systems import SYSTEMS, System, named, obstacle
from benchmarks.model_parallel.table import tables
from benchmarks.performance.figures import figures
from benchmarks.performance.job import Network, goodput_bytes
from benchmarks.performance.rows import ranks_do, why
from benchmarks.performance.store import Store
from lightning_hier import __version__

_GROUP_SIZES = (1, 2, 4)
_BLOCK_SIZE, _SHORT_BLOCK_SIZE = 50, 10
_SHORT = Size(width=64)
_LIMIT_S = 300.0


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="folder (outputs/model_parallel)")
    parser.add_argument("--runs", type=int, default=1, help="of every system")
    parser.add_argument("--rate", default="1gbit", help="of every link, as tc reads it")
    parser.add_argument(
        "--systems", nargs="*", type=named, default=SYSTEMS, metavar="NAME", help="rows"
    )
    parser.add_argument("--short", action="store_true", help="a small model, blocks of 10 steps")
    parser.add_argument("--publish", action="store_true", help="measure nothing, write the page")
    told = parser.parse_args()
    # Rows of the short form must not be taken for those of the other.
    told.out = told.out or Path(f"outputs/model_parallel{'_short' * told.short}")
    return told


def measure_row(system: System, network: Network, size: Size, block_size: int) -> dict[str, Any]:
    """One run of one system: its figures, or the error that ended it."""
    told = {
        "system": system.name,
        "network": asdict(network),
        "size": asdict(size),
        "block_size": block_size,
        "goodput_bytes": goodput_bytes(network),
    }

    def argument(folder: str) -> str:
        return json.dumps({**told, "folder": folder})

    try:
        readings = ranks_do(network, "benchmarks.model_parallel.rank", argument, limit_s=_LIMIT_S)
    except (RuntimeError, TimeoutError) as error:
        return {"failed": why(error)}
    found = asdict(figures(readings, 1 if system.every_step else block_size))
    return {"figures": found, **_means(readings, "live_models", "control_live_models")}


def _means(readings: Sequence[Mapping[str, float]], *names: str) -> dict[str, float]:
    return {name: sum(own[name] for own in readings) / len(readings) for name in names}


def measure_steps(told: argparse.Namespace, store: Store, network: Network) -> None:
    """Every run of every system; those that the store has are left out."""
    size = _SHORT if told.short else Size()
    block_size = _SHORT_BLOCK_SIZE if told.short else _BLOCK_SIZE
    for run in range(1, told.runs + 1):
        for system in told.systems:
            key, missing = f"row/{system.name}/{run}", obstacle(system)
            if missing is not None:
                print(f"{system.title}: left out, {missing}", flush=True)
            elif key not in store:
                found = measure_row(system, network, size, block_size)
                store.add(key, {"system": system.name, "run": run, **found})
                print(f"run {run}, {system.title}: measured", flush=True)


def measure_memory(store: Store) -> None:
    """What each rank holds in groups of every size; those that the store has are left out."""
    for ranks in _GROUP_SIZES:
        if (key := f"memory/{ranks}") not in store:
            network = Network(hosts=GROUPS, ranks_per_host=ranks, rate=None, loopback=True)
            module = "benchmarks.model_parallel.memory_ranks"
            found = ranks_do(network, module, str, limit_s=_LIMIT_S)
            store.add(key, {"ranks": ranks, "found": found})


def main() -> None:
    """Do what the command line says."""
    told = options()
    if told.publish:
        page.publish(told.out)
        return
    network = Network.read("2x2", told.rate, loopback=needs_loopback())
    store = Store(told.out / page.RESULTS)
    measure_memory(store)
    measure_steps(told, store, network)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, "
    versions += f"Lightning {lightning.__version__}, lightning_hier {__version__}"
    print("\n\n".join([versions, *tables(store.lines()).values()]))


if __name__ == "__main__":
    main()
