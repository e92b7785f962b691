"""Soak test: jobs are stopped, killed, delayed and resumed at random times.

    python -m benchmarks.reliability.soak --minutes 30

Each job trains under torchrun with one of several strategies. Random faults are injected:

- ``stop``: SIGTERM to one rank. All ranks save and exit, and the job is restarted.
- ``kill``: SIGKILL to one rank. torchrun restarts all ranks.
- ``host``: torchrun and all of its ranks are killed, and the job is restarted.
- ``delay``: SIGSTOP to one rank, and SIGCONT within the time limit of collectives.

A restarted job may have a different number of ranks. With the same number, the final model must be
bit for bit that of a run without faults. A wait that exceeds its time limit is a hang. The exit
code is 0 if there were no errors.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.reliability.agents import Agent, HangError
from benchmarks.reliability.disturbed_run import JOB, SIZE, WORLDS, DisturbedRun
from benchmarks.reliability.records import Records, RunRecord, table

State = dict[str, torch.Tensor]


def run_without_faults(folder: Path, strategy: str, limit_s: float) -> State:
    """Train without faults, and return the final model."""
    folder.mkdir()
    ranks = WORLDS[strategy][0]
    command = [JOB, str(folder), strategy, *SIZE]
    with Agent(command, ranks=ranks, restarts=0, log=folder / "log") as agent:
        if agent.wait(limit_s) != 0:
            raise HangError(f"the run without faults failed: {folder / 'log'}")
    state: State = torch.load(folder / "final_0.pt", weights_only=True)["state"]
    return state


def run_with_faults(
    folder: Path,
    strategy: str,
    expected: State,
    draw: random.Random,
    records: Records,
    *,
    until_s: float,
    limit_s: float,
) -> RunRecord:
    """Train with faults, and compare the final model with that of a run without faults."""
    begin_s = time.monotonic()
    with DisturbedRun(folder, strategy, draw, limit_s) as run:
        run.disturb(records, until_s)
        states = [final["state"] for final in run.finals()]
        return RunRecord(
            strategy=strategy,
            ranks=run.worlds,
            faults=run.faults,
            differences=_differences(expected, states[0]) if len(run.worlds) == 1 else None,
            agree=not any(_differences(states[0], state) for state in states),
            incomplete=run.log.read_text().count("is incomplete ("),
            seconds=time.monotonic() - begin_s,
        )


def _differences(one: State, other: State) -> list[str]:
    """Return the names of tensors that differ in any bit, or are not finite."""
    return [
        name
        for name, value in one.items()
        if not torch.equal(value, other[name]) or not torch.isfinite(value).all()
    ]


def soak(options: argparse.Namespace, folder: Path) -> Records:
    """Run jobs until the time is over. The last one completes without further faults."""
    records = Records(command=shlex.join(sys.argv), seed=options.seed)
    draw = random.Random(options.seed)
    expected: dict[str, State] = {}
    begin_s = time.monotonic()
    until_s = begin_s + 60 * options.minutes
    for number, strategy in enumerate(itertools.cycle(options.strategies)):
        if time.monotonic() > until_s:
            return records
        limits = {"until_s": until_s, "limit_s": options.limit_s}
        with _written(records, options.out, begin_s):
            if strategy not in expected:
                expected[strategy] = run_without_faults(
                    folder / strategy, strategy, options.limit_s
                )
            run = run_with_faults(
                folder / f"{number}_{strategy}",
                strategy,
                expected[strategy],
                draw,
                records,
                **limits,
            )
            records.runs.append(run)
            print(f"{time.monotonic() - begin_s:6.0f} s: {run}", flush=True)
    raise AssertionError("unreachable: cycle() does not end")


@contextmanager
def _written(records: Records, path: Path, begin_s: float) -> Iterator[None]:
    """Write the records at the end, also after an error. A hang is recorded and not raised."""
    try:
        yield
    except HangError as hang:
        records.hangs.append(str(hang))
    finally:
        records.seconds = time.monotonic() - begin_s
        records.write(path)


def main() -> int:
    """Run the soak test, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategies", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--limit-s", type=float, default=600.0, help="limit of every wait")
    parser.add_argument("--out", type=Path, default=Path("outputs/reliability/soak.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        records = soak(options, Path(folder))
    print(table(records))
    print(f"hangs: {len(records.hangs)}; faults after the end of a job: {records.too_late}")
    return 0 if records.good else 1


if __name__ == "__main__":
    sys.exit(main())
