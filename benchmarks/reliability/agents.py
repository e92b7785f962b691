"""Starts jobs under torchrun and ends them; every wait has a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]

_ENVIRONMENT = {
    # Else ranks that torchrun starts again meet at a store with the keys of those before.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
}
_POLL_S = 0.05


class HangError(RuntimeError):
    """Something did not come to pass in time."""


class Agent:
    """A torchrun, as one runs on each host, and the ranks that it has started.

    Leaving the context kills what is left of it.

    Args:
        command: module to run, and its arguments.
        ranks: on this host.
        restarts: how often the ranks are started again after a fault.
        log: what they all put out is appended here.
        meet: torchrun's arguments that say where hosts meet; none for a job on one host.

    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ranks: int,
        restarts: int,
        log: Path,
        meet: Sequence[str] = ("--standalone",),
    ) -> None:
        self.log = log
        with log.open("a") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *meet),
                    *("--nproc-per-node", str(ranks), "--max-restarts", str(restarts)),
                    *("-m", *command),
                ],
                cwd=REPOSITORY,
                env={**os.environ, **_ENVIRONMENT},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def code(self) -> int | None:
        """What torchrun ended with; None while it runs."""
        return self._process.poll()

    def rank_pids(self, module: str) -> list[int]:
        """Processes of the ranks that run a module, in the order in which they were started."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children()
            return [child.pid for child in children if module in child.cmdline()]
        return []  # one of them has just ended

    def kill_host(self) -> None:
        """Kill it and all its ranks at once, as a power cut does."""
        pids: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self._process.pid)
            # It must start no more ranks while they are counted.
            agent.suspend()
            pids = [agent, *agent.children(recursive=True)]
        for process in pids:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def wait(self, limit_s: float) -> int:
        """Its exit code.

        Raises:
            HangError: it did not end in time.

        """
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HangError(f"not done after {limit_s:.0f} s\n{said(self.log)}") from None

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_host()


def wait_until(done: Callable[[], bool], limit_s: float, what: str, log: Path) -> None:
    """Look again and again whether something has come to pass.

    Raises:
        HangError: it has not, in time.

    """
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise HangError(f"{what}: not within {limit_s:.0f} s\n{said(log)}")
        time.sleep(_POLL_S)


def send(pid: int, signum: signal.Signals) -> bool:
    """Send a signal; tell whether the process was still there."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def said(log: Path) -> str:
    """The end of a log."""
    return log.read_text()[-4000:]
