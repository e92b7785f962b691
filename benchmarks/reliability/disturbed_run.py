"""One job into which faults are injected while it trains."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.reliability.agents import Agent, HangError, log_tail, send, wait_until
from benchmarks.reliability.event_log import Entry
from benchmarks.reliability.records import FaultRecord, Records
from benchmarks.reliability.watch import Attempt, latest, reached

JOB = "benchmarks.reliability.job"
# Numbers of ranks of a job: the first one, then those with which it may restart.
WORLDS = {"bmuf": (2, 3, 1), "bmuf_gtc": (4, 2), "bmuf_adam": (2, 3), "gtc": (2, 3)}
KINDS = ("stop", "kill", "kill", "host", "delay")
LONGEST_DELAY_S = 3.0
LONGEST_PAUSE_S = 4.0
SIZE = ("--epochs", "12", "--pause-ms", "30")
_RESTARTS = 1000


class DisturbedRun:
    """A job and its faults. Its processes are killed at the end of the context.

    Args:
        folder: folder to create for all files of the job.
        strategy: name of the strategy.
        draw: random numbers.
        limit_s: time limit of every wait.

    Attributes:
        worlds: successive numbers of ranks.
        faults: number of faults.
        log: output of all processes.

    """

    def __init__(self, folder: Path, strategy: str, draw: random.Random, limit_s: float) -> None:
        folder.mkdir()
        self.worlds = [WORLDS[strategy][0]]
        self.faults = 0
        self.log = folder / "log"
        self._folder, self._strategy = folder, strategy
        self._draw, self._limit_s = draw, limit_s
        self._agent = self._start()

    @property
    def done(self) -> bool:
        """Whether torchrun has exited, and each rank has saved its final model."""
        return self._agent.code == 0 and len(list(self._folder.glob("final_*.pt"))) == self._ranks

    def finals(self) -> list[dict[str, Any]]:
        """Return the final state of each rank, in order of rank."""
        paths = [self._folder / f"final_{rank}.pt" for rank in range(self._ranks)]
        return [torch.load(path, weights_only=True) for path in paths]

    def disturb(self, records: Records, until_s: float) -> None:
        """Inject random faults until the job is done.

        Args:
            records: results to which faults are added.
            until_s: time on the monotonic clock after which no faults are injected.

        Raises:
            HangError: a wait exceeded its limit, or torchrun has failed.

        """
        while not self.done:
            self._wait(lambda: self._step_after(0.0) is not None, "training")
            pause_s = self._draw.uniform(0.0, LONGEST_PAUSE_S)
            kind = self._draw.choice(KINDS)
            if time.monotonic() + pause_s > until_s:
                self._wait(lambda: False, "the end")
                return
            time.sleep(pause_s)
            if self._agent.code is None:
                fault = self._inject(kind)
                self.faults += 1
                records.too_late += fault is None
                records.faults += [] if fault is None else [fault]

    @property
    def _ranks(self) -> int:
        return self.worlds[-1]

    def _inject(self, kind: str) -> FaultRecord | None:
        """Inject a fault, and wait for the recovery. None if the job had just finished."""
        before, ranks = self._latest(), self._ranks
        begin_s = time.monotonic()
        act: Callable[[int], None] = getattr(self, f"_{kind}")
        act(self._draw.choice(before.pids))
        # The processes survive only a delay.
        same = kind == "delay"
        since_s = time.monotonic() if same else begin_s
        self._wait(lambda: self._step_after(since_s, same=same) is not None, f"steps after {kind}")
        step = self._step_after(since_s, same=same)
        if step is None:
            return None
        after = self._latest()
        lost = 0 if after.pids == before.pids else reached(self._folder, before) - after.begun_at
        return FaultRecord(kind, self._strategy, ranks, after.world, lost, step.time_s - begin_s)

    def _stop(self, pid: int) -> None:
        send(pid, signal.SIGTERM)
        self._wait(lambda: False, "the end after SIGTERM")
        if not self.done:
            self._start_again()

    def _kill(self, pid: int) -> None:
        send(pid, signal.SIGKILL)

    def _host(self, pid: int) -> None:
        self._agent.kill_host()
        self._start_again()

    def _delay(self, pid: int) -> None:
        if send(pid, signal.SIGSTOP):
            time.sleep(self._draw.uniform(0.2, LONGEST_DELAY_S))
            send(pid, signal.SIGCONT)

    def _start_again(self) -> None:
        ranks = self._ranks
        if self._draw.random() < 1 / 3:
            ranks = self._draw.choice(WORLDS[self._strategy])
        if ranks != self._ranks:
            self.worlds.append(ranks)
        self._agent = self._start()

    def _start(self) -> Agent:
        for path in self._folder.glob("final_*.pt"):
            path.unlink()
        command = [JOB, str(self._folder), self._strategy, *SIZE]
        return Agent(command, ranks=self._ranks, restarts=_RESTARTS, log=self.log)

    def _latest(self) -> Attempt:
        attempt = latest(self._folder)
        assert attempt is not None
        return attempt

    def _step_after(self, time_s: float, *, same: bool = True) -> Entry | None:
        """Return the first step after ``time_s``, or None.

        Args:
            time_s: time on the monotonic clock.
            same: whether steps of processes that started before ``time_s`` count.

        """
        attempt = latest(self._folder)
        if attempt is None or not (same or attempt.starts[0].time_s > time_s):
            return None
        return attempt.first_step_after(time_s)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait for an event or for the exit of torchrun."""
        wait_until(lambda: self._agent.code is not None or done(), self._limit_s, what, self.log)
        if self._agent.code not in (None, 0):
            raise HangError(f"torchrun failed during the wait for {what}\n{log_tail(self.log)}")

    def __enter__(self) -> DisturbedRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._agent.kill_host()
