"""Run a module under torchrun on all hosts: it ends in time, and a failure shows what was said."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.hosts import Host
from examples.loopback import free_port

LIMIT_S = 280.0
"""Ends a run that hangs; many times what a run of the tests takes."""

_EXIT_LIMIT_S = 20.0
# Within it the others have said what the failure of the first did to them.
_SETTLE_S = 3.0
_LOOK_S = 0.05
_launches = itertools.count()


@contextmanager
def launched(
    found: Sequence[Host],
    ranks_per_host: int,
    module: str,
    *arguments: str,
    folder: Path,
    **environment: str,
) -> Iterator[list[subprocess.Popen]]:
    """The agents of torchrun that run a module, one on each host; killed at the end.

    Their output goes to `host<index>.log` in `folder`.
    """
    agents = []
    # A store of the launch before may still hold its port.
    shared = found[0].namespace is None
    port = free_port() if shared else 29611 + next(_launches) % 1000
    try:
        for index, host in enumerate(found):
            command = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", str(len(found)), "--nproc-per-node", str(ranks_per_host)),
                *("--node-rank", str(index), "--local-addr", host.address),
                *("--master-addr", found[0].address, "--master-port", str(port)),
                *("-m", module, *arguments),
            ]
            agents.append(host.start(command, folder / f"host{index}.log", **environment))
        yield agents
    finally:
        for agent, host in zip(agents, found, strict=False):
            host.kill_all()
            _end(agent)


def run_module(
    found: Sequence[Host],
    ranks_per_host: int,
    module: str,
    *arguments: str,
    folder: Path,
    limit_s: float = LIMIT_S,
    **environment: str,
) -> None:
    """Run a module under torchrun on all hosts; raise with their output if one of them fails.

    An agent of torchrun waits five minutes for one that has failed, so the others are ended.

    Raises:
        RuntimeError: a host's agent has failed.
        TimeoutError: they have not come to an end within the limit.

    """
    start = launched(found, ranks_per_host, module, *arguments, folder=folder, **environment)
    with start as agents:
        in_time = _wait(lambda: _all_ended(agents) or _has_failed(agents), limit_s)
        failed = _has_failed(agents)
        if failed:
            _wait(lambda: _all_ended(agents), _SETTLE_S)
    if failed:
        raise RuntimeError(said(folder, len(found)))
    if not in_time:
        raise TimeoutError(f"came to no end within {limit_s:.0f} s\n{said(folder, len(found))}")


def said(folder: Path, number: int) -> str:
    """The end of what so many hosts have put out."""
    logs = [folder / f"host{index}.log" for index in range(number)]
    return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)


def _all_ended(agents: Sequence[subprocess.Popen]) -> bool:
    return all(agent.poll() is not None for agent in agents)


def _has_failed(agents: Sequence[subprocess.Popen]) -> bool:
    return any(agent.poll() for agent in agents)


def _wait(done: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _end(agent: subprocess.Popen) -> None:
    """Wait for an agent that has been killed; on the loopback have it end its workers first."""
    if agent.poll() is None:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(_EXIT_LIMIT_S)
    agent.kill()
    agent.wait()
