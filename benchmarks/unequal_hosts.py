"""Train on two emulated hosts, one of half the speed, with equal batches and with measured ones.

    python -m benchmarks.unequal_hosts            three seeds, 15 minutes
    python -m benchmarks.unequal_hosts --short    one seed, 2 minutes

Each host has a core of this machine. A busy process shares the core of the second one. The batches
are those that `lightning-hier measure` finds for `examples/unequal_hosts.yaml`. Needs Linux with
two cores; without root or iproute2, the hosts share the loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil

import lightning_hier as lh
from benchmarks.hosts import Host, hosts_or_loopback, needs_loopback
from benchmarks.launch import run_module
from benchmarks.reliability.records import versions
from examples.quiet import quiet_trainer
from examples.tables import markdown, mean_and_deviation
from examples.unequal_hosts import LanguageModel, PythonBytes
from lightning_hier.cli.main import main as run_command

_MODULE = "benchmarks.unequal_hosts"
_CONFIG = "examples/unequal_hosts.yaml"
_EQUAL, _RATE = [32, 32], "1gbit"
_BUSY = "while True: pass"


def main(options: argparse.Namespace) -> None:
    """Measure and train on the emulated hosts, and print the results."""
    load = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, _two_hosts() as pair:
        folder = Path(name)
        run_module(pair, 1, _MODULE, "--rank=measure", folder=folder)
        measured = (folder / "host0.log").read_text()
        text = measured[measured.index("ms of a step") :]
        sizes = [int(size) for size in re.findall(r"host \d: (\d+)    ", text)]
        systems = {
            "equal batches": (_EQUAL, "equal"),
            "measured batches, by samples": (sizes, "samples"),
            "measured batches, counted equally": (sizes, "equal"),
        }
        # Seeds outside, so that a change in the speed of this machine affects all systems.
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
        for seed in range(1 if options.short else 3):
            for system, (batches, weighting) in systems.items():
                job = {"seed": seed, "batches": batches, "weighting": weighting}
                job |= {"steps": 100 if options.short else options.steps}
                run_module(pair, 1, _MODULE, f"--rank={json.dumps(job)}", folder=folder)
                lines = (folder / "host0.log").read_text().splitlines()
                runs[system].append(json.loads(next(x for x in lines if x.startswith('{"loss'))))
    print(f"- command: {shlex.join(['python', '-m', _MODULE, *sys.argv[1:]])}")
    print(f"- versions: {versions()}")
    print(f"- hardware: {psutil.cpu_count()} cores, load at the start {load:.1f}\n\n{text}\n")
    print(_table(systems, runs))


def _table(systems: dict[str, Any], runs: dict[str, list[dict[str, float]]]) -> str:
    rows = []
    for name, results in runs.items():
        times = [run["ms_a_step"] for run in results]
        ratios = [t / run["ms_a_step"] for t, run in zip(times, runs["equal batches"], strict=True)]
        loss = mean_and_deviation([run["loss"] for run in results], 3)
        batches = ", ".join(map(str, systems[name][0]))
        rows.append([name, batches, mean_and_deviation(times), mean_and_deviation(ratios, 2), loss])
    return markdown(["", "samples", "ms a step", "of equal batches", "loss, valid split"], rows)


@contextmanager
def _two_hosts() -> Iterator[Sequence[Host]]:
    """Two hosts, and a process that takes half of the second one's core."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY], start_new_session=True)
    os.sched_setaffinity(busy.pid, {1})
    try:
        with hosts_or_loopback(2, _RATE, loopback=needs_loopback()) as pair:
            yield pair
    finally:
        busy.kill()
        busy.wait()


def _run_rank(job: str) -> None:
    """Measure or train on a rank that torchrun has started."""
    host = int(os.environ["GROUP_RANK"])
    os.sched_setaffinity(0, {host})
    if job == "measure":
        run_command(["measure", f"--config={_CONFIG}"])
    else:
        print(json.dumps(_train(**json.loads(job))), flush=True)


def _train(seed: int, batches: list[int], weighting: Any, steps: int) -> dict[str, float]:
    """Train as the config does. Returns the loss on the valid split, and the time of a step."""
    pl.seed_everything(seed, verbose=False)
    clock = _Clock()
    trainer = quiet_trainer(
        lh.HierarchicalStrategy(block_sync=lh.BMUFAdam(weighting=weighting)),
        devices=1,
        num_nodes=2,
        max_steps=steps,
        val_check_interval=steps,
        check_val_every_n_epoch=None,
        callbacks=[clock],
    )
    trainer.fit(LanguageModel(), PythonBytes(batch_sizes=batches))
    loss = float(trainer.callback_metrics["valid_loss"])
    return {"loss": loss, "ms_a_step": 1e3 * clock.seconds / steps}


class _Clock(pl.Callback):
    """Seconds from the first step to the last synchronisation."""

    def on_train_start(self, *_: Any) -> None:
        self.seconds = -time.perf_counter()

    def on_validation_start(self, *_: Any) -> None:
        # The global model is in the module, so all hosts have finished.
        self.seconds += time.perf_counter()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=400, help="of each run (%(default)s)")
    parser.add_argument("--short", action="store_true", help="one seed of 100 steps")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    given = _parser().parse_args()
    main(given) if given.rank is None else _run_rank(given.rank)
