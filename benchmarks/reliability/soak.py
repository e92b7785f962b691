"""Jobs that are stopped, killed, delayed and resumed at random, for so many minutes.

    python -m benchmarks.reliability.soak --minutes 30

Each job trains under torchrun by one of several strategies. While it trains, faults are drawn:

- ``stop``: SIGTERM to one rank; all save and end, and the job is started again;
- ``kill``: SIGKILL to one rank; torchrun starts all ranks again;
- ``host``: torchrun and all of its ranks are killed, and the job is started again;
- ``delay``: SIGSTOP to one rank, and SIGCONT within the time limit of collectives.

A job that is started again may get another number of ranks. One that has kept its number must end
with the very bits of a run without faults. Every wait has a limit; what exceeds it is a hang. The
exit code is 0 if nothing was wrong.
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


def through(folder: Path, strategy: str, limit_s: float) -> State:
    """The model that a run comes to which nothing disturbs."""
    folder.mkdir()
    ranks = WORLDS[strategy][0]
    command = [JOB, str(folder), strategy, *SIZE]
    with Agent(command, ranks=ranks, restarts=0, log=folder / "log") as agent:
        if agent.wait(limit_s) != 0:
            raise HangError(f"the run without faults failed: {folder / 'log'}")
    state: State = torch.load(folder / "final_0.pt", weights_only=True)["state"]
    return state


def disturbed(
    folder: Path,
    strategy: str,
    whole: State,
    draw: random.Random,
    records: Records,
    *,
    until_s: float,
    limit_s: float,
) -> RunRecord:
    """A run with faults, and how it compares with one that had none."""
    begin_s = time.monotonic()
    with DisturbedRun(folder, strategy, draw, limit_s) as run:
        run.disturb(records, until_s)
        states = [final["state"] for final in run.finals()]
        return RunRecord(
            strategy=strategy,
            ranks=run.worlds,
            faults=run.faults,
            differences=_differences(whole, states[0]) if len(run.worlds) == 1 else None,
            agree=not any(_differences(states[0], state) for state in states),
            incomplete=run.log.read_text().count("is incomplete ("),
            seconds=time.monotonic() - begin_s,
        )


def _differences(one: State, other: State) -> list[str]:
    """Names of the tensors that differ in a bit, or hold what is not finite."""
    return [
        name
        for name, value in one.items()
        if not torch.equal(value, other[name]) or not torch.isfinite(value).all()
    ]


def soak(options: argparse.Namespace, folder: Path) -> Records:
    """Run jobs until the time is over; the last one comes to its end without faults."""
    records = Records(command=shlex.join(sys.argv), seed=options.seed)
    draw = random.Random(options.seed)
    wholes: dict[str, State] = {}
    begin_s = time.monotonic()
    until_s = begin_s + 60 * options.minutes
    for number, strategy in enumerate(itertools.cycle(options.strategies)):
        if time.monotonic() > until_s:
            return records
        limits = {"until_s": until_s, "limit_s": options.limit_s}
        with _written(records, options.out, begin_s):
            if strategy not in wholes:
                wholes[strategy] = through(folder / strategy, strategy, options.limit_s)
            run = disturbed(
                folder / f"{number}_{strategy}", strategy, wholes[strategy], draw, records, **limits
            )
            records.runs.append(run)
            print(f"{time.monotonic() - begin_s:6.0f} s: {run}", flush=True)
    raise AssertionError("unreachable: strategies are cycled for ever")


@contextmanager
def _written(records: Records, path: Path, begin_s: float) -> Iterator[None]:
    """Have records written whatever happens; a hang is recorded, and the next job begins."""
    try:
        yield
    except HangError as hang:
        records.hangs.append(str(hang))
    finally:
        records.seconds = time.monotonic() - begin_s
        records.write(path)


def main() -> int:
    """Soak, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategies", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--limit-s", type=float, default=600.0, help="of every wait")
    parser.add_argument("--out", type=Path, default=Path("outputs/reliability/soak.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        records = soak(options, Path(folder))
    print(table(records))
    print(f"hangs: {len(records.hangs)}; faults that came too late: {records.too_late}")
    return 0 if records.good else 1


if __name__ == "__main__":
    sys.exit(main())
