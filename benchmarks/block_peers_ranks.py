"""Trains with each system in turn, several times, in the processes of one start of the ranks.

Run by torchrun on every host, by :mod:`benchmarks.block_peers`.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from benchmarks.performance.job import Job, Steps
from benchmarks.performance.link import measure_goodput
from benchmarks.performance.on_rank import report
from benchmarks.performance.rank import control, train
from benchmarks.performance.systems import named, set_up


def turn(job: Job, blocks: int) -> dict[str, Any]:
    """Train with one system: a block as the warm-up, then those that are measured.

    Returns:
        Seconds of each step of the measured blocks, and the bytes that the host sent in it.

    """
    system = named(job.system)
    setup = set_up(system)
    window = blocks * system.block
    watch = train(job, setup, warm_up=system.block, window=window, adam=system.adam)
    gc.collect()  # so that the next system does not find the memory of this one in use
    return {"steps_s": watch.steps_s(), "sent_bytes": watch.sent_bytes()}


def run(job: Job, systems: list[str], runs: int, blocks: int) -> list[dict[str, Any]]:
    """Measure all systems in turn, ``runs`` times. A collective of the world."""
    lines = []
    for number in range(1, runs + 1):
        alone = control(replace(job, steps=Steps(control=20, warm_up=0, window=0)), adam=False)
        # A host alone has no link.
        link = job.network.hosts > 1
        goodput = (
            measure_goodput(job.goodput_bytes, 0, job.network.ranks_per_host) if link else None
        )
        for name in systems:
            line = turn(replace(job, system=name), blocks)
            lines.append({"run": number, "system": name, "control_s": alone, "goodput": goodput}
                         | line)  # fmt: skip
            if dist.get_rank() == 0:
                print(number, name, sum(line["steps_s"]) / len(line["steps_s"]), flush=True)
    return lines


def main() -> None:
    """Do what the arguments say: the job, and the systems, runs and blocks."""
    job, told = Job.decoded(sys.argv[1]), json.loads(sys.argv[2])
    report(job.folder, lambda: run(job, told["systems"], told["runs"], told["blocks"]))


if __name__ == "__main__":
    main()
