"""Launch of a module by torchrun on all hosts, with a time limit and the output of failures."""

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
"""Default time limit of a run, many times the duration of a run of the tests."""

_EXIT_LIMIT_S = 20.0
# Time for the other hosts to report their errors after the first failure.
_AFTER_FAILURE_S = 3.0
_POLL_S = 0.05
_launches = itertools.count()


@contextmanager
def launched(
    hosts: Sequence[Host],
    ranks_per_host: int,
    module: str,
    *arguments: str,
    folder: Path,
    **environment: str,
) -> Iterator[list[subprocess.Popen]]:
    """Start an agent of torchrun on each host, and kill them at the end.

    Their output is written to `host<index>.log` in `folder`.
    """
    agents = []
    # A new port for each launch, because the store of the last one may still be bound.
    shared = hosts[0].namespace is None
    port = free_port() if shared else 29611 + next(_launches) % 1000
    try:
        for index, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", str(len(hosts)), "--nproc-per-node", str(ranks_per_host)),
                *("--node-rank", str(index), "--local-addr", host.address),
                *("--master-addr", hosts[0].address, "--master-port", str(port)),
                *("-m", module, *arguments),
            ]
            agents.append(host.start(command, folder / f"host{index}.log", **environment))
        yield agents
    finally:
        for agent, host in zip(agents, hosts, strict=False):
            host.kill_all()
            _end(agent)


def run_module(
    hosts: Sequence[Host],
    ranks_per_host: int,
    module: str,
    *arguments: str,
    folder: Path,
    limit_s: float = LIMIT_S,
    **environment: str,
) -> None:
    """Run a module under torchrun on all hosts.

    After a failure, the other agents are stopped, because they would wait five minutes for it.

    Raises:
        RuntimeError: the agent of a host has failed. The message contains the output of all hosts.
        TimeoutError: the run was not complete within the limit.

    """
    start = launched(hosts, ranks_per_host, module, *arguments, folder=folder, **environment)
    with start as agents:
        in_time = _wait(lambda: _all_ended(agents) or _has_failed(agents), limit_s)
        failed = _has_failed(agents)
        if failed:
            _wait(lambda: _all_ended(agents), _AFTER_FAILURE_S)
    if failed:
        raise RuntimeError(log_tails(folder, len(hosts)))
    if not in_time:
        raise TimeoutError(f"not complete within {limit_s:.0f} s\n{log_tails(folder, len(hosts))}")


def log_tails(folder: Path, number: int) -> str:
    """Return the last lines of output of each of ``number`` hosts."""
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
        time.sleep(_POLL_S)
    return True


def _end(agent: subprocess.Popen) -> None:
    """Stop an agent and wait for it. On the loopback, it stops its workers first."""
    if agent.poll() is None:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(_EXIT_LIMIT_S)
    agent.kill()
    agent.wait()
