"""Block synchronisation beside torchft's, in turns within one start of the ranks.

    python -m benchmarks.block_peers --layouts 2x1 4x1 2x2 1x4 --rates 1gbit 100mbit --runs 5

`benchmarks.performance` starts the ranks anew for every row, which takes longer than the row. Here,
all systems run in the same processes, one after the other, several times. A machine that becomes
slower does so for all of them. Lines go to ``block_peers.jsonl`` in the output folder; a layout and
rate that the file contains is not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import needs_loopback
from benchmarks.performance.figures import spread
from benchmarks.performance.job import Job, Network, Steps, goodput_bytes
from benchmarks.performance.link import bytes_to_send
from benchmarks.performance.rows import ranks_do
from benchmarks.performance.store import Line, Store
from benchmarks.performance.systems import named
from benchmarks.performance.work import Work
from examples.tables import markdown

SYSTEMS = ("torchft_local_sgd", "bmuf", "torchft_diloco", "diloco", "bmuf_overlap")

_LIMIT_S = 7200.0
_HEADER = ("system", "ms a step", "to torchft LocalSGD", "to no communication", "ms between",
           "synchronisation, s", "largest to median", "of the wire time")  # fmt: skip


def measure(network: Network, work: Work, told: argparse.Namespace) -> list[Line]:
    """Measure all systems in one network, and return a line for each system and run."""
    settings = {"systems": told.systems, "runs": told.runs, "blocks": told.blocks}

    def argument(folder: str) -> str:
        return Job(
            system="",
            work=work,
            network=network,
            steps=Steps(control=0, warm_up=0, window=0),
            goodput_bytes=goodput_bytes(network),
            folder=folder,
        ).encoded()

    ranks = ranks_do(network, "benchmarks.block_peers_ranks", argument, json.dumps(settings),
                     limit_s=_LIMIT_S)  # fmt: skip
    return [_of_all_ranks(lines) for lines in zip(*ranks, strict=True)]


def _of_all_ranks(lines: Sequence[Line]) -> Line:
    """One line from those of all ranks about the same run of the same system."""
    block = named(lines[0]["system"]).block
    steps = [statistics.fmean(times) for times in zip(*(own["steps_s"] for own in lines))]  # noqa: B905
    between = statistics.median(s for n, s in enumerate(steps, start=1) if n % block)
    return {
        "system": lines[0]["system"],
        "run": lines[0]["run"],
        "control_s": statistics.fmean(s for own in lines for s in own["control_s"]),
        "step_s": statistics.fmean(steps),
        "between_s": between,
        "synchronisations_s": [s - between for s in steps[block - 1 :: block]],
        "goodput": lines[0]["goodput"],
    }


def table(lines: Sequence[Line], network: Network, work: Work) -> str:
    """The table of one network: the median of the runs with the smallest and the largest."""
    rows = []
    first = {own["run"]: own for own in lines if own["system"] == "torchft_local_sgd"}
    for system in dict.fromkeys(own["system"] for own in lines):
        runs = [own for own in lines if own["system"] == system]
        took = [s for own in runs for s in own["synchronisations_s"]]
        rows.append(
            (
                named(system).title,
                spread([1e3 * own["step_s"] for own in runs], 0),
                spread([own["step_s"] / first[own["run"]]["step_s"] for own in runs], 3)
                if first else "",
                spread([own["step_s"] / own["control_s"] for own in runs], 3),
                spread([1e3 * own["between_s"] for own in runs], 0),
                spread(took, 2),
                f"{max(took) / statistics.median(took):.2f}",
                spread(_to_wire_time(runs, network, work), 2) if network.hosts > 1 else "",
            )
        )  # fmt: skip
    return markdown(_HEADER, rows)


def _to_wire_time(runs: Sequence[Line], network: Network, work: Work) -> list[float]:
    """Synchronisations to what the link takes for a float32 model, by its rate in the same run."""
    nbytes = bytes_to_send(work.model_bytes, network.hosts)
    return [s * own["goodput"] / nbytes for own in runs for s in own["synchronisations_s"]]


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.block_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/block_peers"), help="folder")
    parser.add_argument("--runs", type=int, default=5, help="of every system, in turns")
    parser.add_argument("--blocks", type=int, default=1, help="measured in each run")
    parser.add_argument("--layouts", nargs="+", default=["2x1", "4x1", "2x2", "1x4"])
    parser.add_argument("--rates", nargs="+", default=["1gbit"], help="as tc reads them")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--cells", type=int, default=768, help="of an LSTM layer of the model")
    return parser.parse_args()


def main() -> None:
    """Do what the command line says."""
    told, loopback = options(), needs_loopback()
    work = Work(cells=told.cells)
    store = Store(told.out / "block_peers.jsonl")
    for layout in told.layouts:
        for rate in told.rates:
            network = Network.read(layout, rate, loopback=loopback)
            key = f"{network}, {work.parameters}"
            if key not in store:
                store.add(key, {"lines": measure(network, work, told)})
            lines: Any = next(own["lines"] for own in store.lines() if own["key"] == key)
            print(f"\n{network}, {work.parameters / 1e6:.1f}M parameters\n", flush=True)
            print(table(lines, network, work), flush=True)


if __name__ == "__main__":
    main()
