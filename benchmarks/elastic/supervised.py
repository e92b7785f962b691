"""Runs under kills: groups that are restarted independently, or one job restarted as a whole."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchmarks.elastic.job import log_file
from benchmarks.elastic.schedule import Kill
from benchmarks.reliability.agents import Agent, send
from examples.elastic.jobs import Job, LighthouseJob, end_of
from examples.elastic.step_log import Line, last_line, read_log

JOB = "benchmarks.elastic.job"
_POLL_S, _START_LIMIT_S = 0.02, 180.0
# Seconds that a kill waits for a synchronisation of its group.
_LONGEST_AIM_S = 10.0
_RESTARTS = 100_000
# Exits without a kill after which a run is stopped. A few are expected.
_MOST_EXITS = 100


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of all runs.

    Attributes:
        groups: number of groups of one rank.
        block_size: steps of a block.
        fragments: parts of the model, each synchronised once in a block.
        overlap: steps between the start of an exchange and its effect.
        step_s: minimum seconds of a step.
        heartbeat_timeout_s: seconds without a heartbeat after which a group is lost.
        join_timeout_s: ``join_timeout_s`` of the groups.

    """

    groups: int = 4
    block_size: int = 20
    fragments: int = 1
    overlap: int = 0
    step_s: float = 0.1
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 20.0


@dataclass(frozen=True)
class RunRecord:
    """Events and logs of a run.

    Attributes:
        begun_s: time when all groups had started to train, on the monotonic clock of the machine.
        ended_s: time when the run was stopped.
        kills: executed kills.
        exits: exit codes of processes that exited without a kill.
        logs: lines of each group.

    """

    begun_s: float
    ended_s: float
    kills: list[Kill]
    exits: list[int]
    logs: list[list[Line]] = field(repr=False)


class Processes(Protocol):
    """The processes of a run."""

    exits: list[int]

    def restart_exited(self) -> None:
        """Restart processes that exited. Raises a RuntimeError if the run cannot continue."""

    def kill(self, group: int) -> int | None:
        """Send SIGKILL to the process of a group. Returns its pid, or None if there is none."""

    @property
    def ended(self) -> bool:
        """Whether all groups have reached the last step."""


class Groups:
    """Independent jobs of the groups, each of which is restarted alone, and a Lighthouse.

    Args:
        folder: existing folder of the run.
        setup: settings.
        seed: seed of the model and of the order of the data.
        steps: last step, or -1.
        stack: stack that stops the processes when it is closed.

    """

    def __init__(
        self, folder: Path, setup: Setup, *, seed: int, steps: int, stack: ExitStack
    ) -> None:
        self.exits: list[int] = []
        self._folder, self._setup, self._stack = folder, setup, stack
        self._options = ["--seed", str(seed), "--steps", str(steps)]
        self._lighthouse = stack.enter_context(
            LighthouseJob(
                folder / "lighthouse.txt",
                heartbeat_timeout_s=setup.heartbeat_timeout_s,
                join_timeout_s=setup.join_timeout_s,
            )
        )
        self._jobs = [self._start(group) for group in range(setup.groups)]
        self._killed: set[int] = set()

    def restart_exited(self) -> None:
        """Restart the groups that exited."""
        if self._lighthouse.code is not None:
            raise RuntimeError(f"the Lighthouse exited:\n{end_of(self._lighthouse.output)}")
        for group, job in enumerate(self._jobs):
            if job.code in (None, 0):
                continue
            if job.pid not in self._killed:
                self.exits.append(job.code)
            if len(self.exits) > _MOST_EXITS:
                raise RuntimeError(
                    f"groups exited {len(self.exits)} times without a kill:\n{end_of(job.output)}"
                )
            self._jobs[group] = self._start(group)

    def kill(self, group: int) -> int | None:
        """Send SIGKILL to the process of a group."""
        job = self._jobs[group]
        self._killed.add(job.pid)
        job.kill()
        return job.pid

    @property
    def ended(self) -> bool:
        """Whether all groups have reached the last step."""
        return all(job.code == 0 for job in self._jobs)

    def _start(self, group: int) -> Job:
        membership = ["--lighthouse", self._lighthouse.address, "--group", str(group)]
        membership += ["--groups", str(self._setup.groups)]
        membership += ["--join_timeout_s", str(self._setup.join_timeout_s)]
        command = [
            sys.executable,
            "-m",
            JOB,
            str(self._folder),
            *membership,
            *_settings(self._setup),
            *self._options,
        ]
        return self._stack.enter_context(Job(command, self._folder / f"group_{group}.txt"))


class WholeJob:
    """One job of all groups under torchrun, which restarts all ranks after a failure.

    The arguments are those of :class:`Groups`.
    """

    def __init__(
        self, folder: Path, setup: Setup, *, seed: int, steps: int, stack: ExitStack
    ) -> None:
        self.exits: list[int] = []
        command = [JOB, str(folder), *_settings(setup), "--seed", str(seed), "--steps", str(steps)]
        self._agent = stack.enter_context(
            Agent(command, ranks=setup.groups, restarts=_RESTARTS, log=folder / "torchrun.txt")
        )

    def restart_exited(self) -> None:
        """Raise a RuntimeError if torchrun has failed. It restarts the ranks itself."""
        if self._agent.code not in (None, 0):
            raise RuntimeError(f"torchrun exited:\n{end_of(self._agent.log)}")

    def kill(self, group: int) -> int | None:
        """Send SIGKILL to a rank."""
        ranks = self._agent.rank_pids(JOB)
        if group >= len(ranks):
            return None  # torchrun is stopping or starting the ranks
        return ranks[group] if send(ranks[group], signal.SIGKILL) else None

    @property
    def ended(self) -> bool:
        """Whether all ranks have reached the last step."""
        return self._agent.code == 0


def run(
    kind: type[Groups] | type[WholeJob],
    folder: Path,
    setup: Setup,
    *,
    seed: int = 0,
    seconds: float | None = None,
    steps: int = -1,
    kills: Sequence[Kill] = (),
) -> RunRecord:
    """Train in a new folder, and kill groups.

    Args:
        kind: independent groups or one job.
        folder: folder to create.
        setup: settings.
        seed: seed of the model and of the order of the data.
        seconds: duration from the time when all groups train, or None for no limit.
        steps: last step, or -1 for no limit.
        kills: planned kills.

    Raises:
        RuntimeError: the run could not continue.

    """
    folder.mkdir(parents=True)
    logs = [log_file(folder, group) for group in range(setup.groups)]
    executed, planned = [], list(kills)
    with ExitStack() as stack:
        processes: Processes = kind(folder, setup, seed=seed, steps=steps, stack=stack)
        begun_s = _wait_for_all(processes, logs)
        while seconds is None or time.monotonic() < begun_s + seconds:
            processes.restart_exited()
            if processes.ended:
                break
            train_s = time.monotonic() - begun_s
            if planned and _is_due(planned[0], train_s, setup, logs[planned[0].group]):
                time_s, pid = time.monotonic(), processes.kill(planned[0].group)
                if pid is not None:
                    executed.append(replace(planned.pop(0), time_s=time_s, pid=pid))
            time.sleep(_POLL_S)
        ended_s = time.monotonic()
    return RunRecord(begun_s, ended_s, executed, processes.exits, [read_log(file) for file in logs])


def _is_due(kill: Kill, now_s: float, setup: Setup, log: Path) -> bool:
    """Whether a kill is due at ``now_s``, in seconds from the time when all groups train."""
    if now_s < kill.time_s or kill.delay_s is None:
        return now_s >= kill.time_s
    last = last_line(log)
    if last is None or now_s > kill.time_s + _LONGEST_AIM_S:
        return True
    since_s = time.monotonic() - last.time_s - setup.step_s
    # A group with an older line has not restarted yet.
    synchronises = (last.step + 1) % setup.block_size == 0 and since_s < _LONGEST_AIM_S / 2
    return synchronises and since_s >= kill.delay_s


def _wait_for_all(processes: Processes, logs: Sequence[Path]) -> float:
    """Wait until all groups train. Returns the time when the last one started."""
    until = time.monotonic() + _START_LIMIT_S
    while not all(file.exists() for file in logs):
        processes.restart_exited()
        if time.monotonic() > until:
            raise RuntimeError(f"the groups do not all train after {_START_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)
    return time.monotonic()


def _settings(setup: Setup) -> list[str]:
    names = ("block_size", "fragments", "overlap", "step_s")
    return [text for name in names for text in (f"--{name}", str(getattr(setup, name)))]
