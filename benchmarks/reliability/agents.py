"""Jobs under torchrun: start, wait with a time limit, and kill."""

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
    # Otherwise, restarted ranks use the same store, which has the keys of the ranks before.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
}
_POLL_S = 0.05


class HangError(RuntimeError):
    """An event did not happen within its time limit."""


class Agent:
    """A process of torchrun and its ranks, which are killed at the end of the context.

    Args:
        command: module to run, and its arguments.
        ranks: number of ranks on this host.
        restarts: maximum number of restarts of the ranks.
        log: file to which the output of all processes is appended.
        rendezvous: arguments of torchrun for the rendezvous of hosts. The default is for one host.

    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ranks: int,
        restarts: int,
        log: Path,
        rendezvous: Sequence[str] = ("--standalone",),
    ) -> None:
        self.log = log
        with log.open("a") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *rendezvous),
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
        """Exit code of torchrun, or None while it runs."""
        return self._process.poll()

    def rank_pids(self, module: str) -> list[int]:
        """Return the pids of the ranks that run ``module``, in the order in which they started."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children()
            return [child.pid for child in children if module in child.cmdline()]
        return []  # one of the processes has just exited

    def kill_host(self) -> None:
        """Kill torchrun and all its ranks at once, like a power failure."""
        pids: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self._process.pid)
            # It must not start further ranks while they are listed.
            agent.suspend()
            pids = [agent, *agent.children(recursive=True)]
        for process in pids:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def wait(self, limit_s: float) -> int:
        """Wait for torchrun, and return its exit code.

        Raises:
            HangError: torchrun did not exit within the limit.

        """
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HangError(f"not done after {limit_s:.0f} s\n{log_tail(self.log)}") from None

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
    """Poll ``done`` until it returns True.

    Raises:
        HangError: ``done`` did not return True within the limit.

    """
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise HangError(f"{what}: not within {limit_s:.0f} s\n{log_tail(log)}")
        time.sleep(_POLL_S)


def send(pid: int, signum: signal.Signals) -> bool:
    """Send a signal. Return whether the process exists."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def log_tail(log: Path) -> str:
    """Return the last lines of a log."""
    return log.read_text()[-4000:]
