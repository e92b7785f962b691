"""Runs a function on several ranks, each in a process of its own.

The processes fork from a server that has already imported torch, Lightning and the package. A run
of four ranks therefore starts in a fraction of a second. Each rank has the environment that
torchrun gives its workers, so `dist.init_process_group("gloo")` and
`Trainer(strategy="ddp", devices=N)` both work. As under torchrun, the rendezvous store belongs to
the parent of the ranks, on a port that the kernel chooses. Concurrent runs therefore cannot
collide, and the store outlives a rank that ends early.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from tests import rank_process

# A run takes seconds. The limit is long enough for a busy machine, and ends a run that hangs.
LIMIT_S = 280.0
_SETTLE_S = 0.3
_EXIT_LIMIT_S = 60.0

_context = get_context("forkserver")
# Each rank would import these modules otherwise. If the import fails, ranks start without them.
_context.set_forkserver_preload(["tests.preloaded"])


@dataclass(slots=True)
class RankOutcome:
    """The outcome of one rank: a result, an error, or the end of its process without a report.

    `error` reads "ValueError: message" and `traceback` is its text. A rank that `died` has neither.
    Its `exit_code` is that of the process, or the negated number of the signal that killed it.
    """

    rank: int
    result: Any = None
    error: str | None = None
    traceback: str = ""
    died: bool = False
    exit_code: int | None = None
    ended_at_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the rank raised or died."""
        return self.died or self.error is not None


class RankError(RuntimeError):
    """Error of a failed rank: `rank` is its number, `error` its exception as one line."""

    def __init__(self, outcome: RankOutcome) -> None:
        self.rank = outcome.rank
        self.error = outcome.error or f"died with exit code {outcome.exit_code}"
        super().__init__(f"rank {self.rank}: {self.error}\n\n{outcome.traceback}".rstrip())


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    ranks_per_node: int | None = None,
    expect_failure: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `world_size` ranks and return their results by rank.

    The function, its arguments and results are pickled, so the function must be defined at the top
    level of a module. A run can have one default process group. A second one, after
    `destroy_process_group`, would find the keys of the first in the store. Unless `expect_failure`,
    the others are killed as soon as one rank fails.

    Args:
        function: function that every rank calls.
        world_size: number of ranks.
        args: positional arguments of the function.
        timeout_s: time limit of the run.
        env: variables that are added to the environment of every rank.
        ranks_per_node: ranks of a host, for the environment. By default, all are on one host.
        expect_failure: every rank must raise. The result is then their exceptions as text.
        kwargs: keyword arguments of the function.

    Raises:
        RankError: a rank failed. The first failure is raised. The death of a rank has precedence
            over errors, because those of other ranks usually follow from it.
        TimeoutError: ranks were not done in time. The message has their numbers and stacks.

    """
    call = rank_process.pack(function, args, kwargs)
    environments = _environments(world_size, ranks_per_node, env)
    outcomes = _run(call, environments, timeout_s, stop_at_failure=not expect_failure)
    if expect_failure:
        return [_expected_error(outcome) for outcome in outcomes]
    failures = [outcome for outcome in outcomes if outcome.failed]
    if failures:
        raise RankError(min(failures, key=lambda o: (not o.died, o.ended_at_s)))
    return [outcome.result for outcome in outcomes]


def rank_outcomes(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    ranks_per_node: int | None = None,
    **kwargs: Any,
) -> list[RankOutcome]:
    """As `run_ranks`, but no rank ends because another failed. For tests that kill ranks."""
    call = rank_process.pack(function, args, kwargs)
    environments = _environments(world_size, ranks_per_node, env)
    return _run(call, environments, timeout_s, stop_at_failure=False)


def _expected_error(outcome: RankOutcome) -> str:
    if outcome.error is None:
        end = f"died with exit code {outcome.exit_code}" if outcome.died else "returned a result"
        raise AssertionError(f"rank {outcome.rank} should have raised an error, but {end}")
    return outcome.error


def _environments(
    world_size: int, ranks_per_node: int | None, extra: Mapping[str, str] | None
) -> list[dict[str, str]]:
    """Environment of every rank, as torchrun sets it, without the address of the store."""
    per_node = ranks_per_node or world_size
    if world_size < 1 or world_size % per_node:
        raise ValueError(f"{world_size} ranks do not fill hosts of {per_node} ranks each")
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    shared = {
        **os.environ,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_WORLD_SIZE": str(world_size // per_node),
        "TORCHELASTIC_RUN_ID": uuid4().hex,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": "1",
    }
    return [
        {
            **shared,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % per_node),
            "NODE_RANK": str(rank // per_node),
            "GROUP_RANK": str(rank // per_node),
            **(extra or {}),
        }
        for rank in range(world_size)
    ]


def _run(
    call: bytes, environments: Sequence[dict[str, str]], timeout_s: float, *, stop_at_failure: bool
) -> list[RankOutcome]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        try:
            for number, environment in enumerate(environments):
                ranks.append(_Rank(number, call, environment | address, Path(folder)))
            # The first rank of all starts after the fork server's imports, which do not count.
            _collect_reports(ranks, time.monotonic() + timeout_s, stop_at_failure)
            if not (stop_at_failure and any(rank.outcome.failed for rank in ranks)):
                _let_end(ranks)
        finally:
            for rank in ranks:
                rank.kill()
    return [rank.outcome for rank in ranks]


def _collect_reports(ranks: Sequence[_Rank], deadline_s: float, stop_at_failure: bool) -> None:
    waiting = list(ranks)
    while waiting:
        handles = [h for rank in waiting for h in (rank.pipe, rank.process.sentinel)]
        ready = connection.wait(handles, timeout=max(0.0, deadline_s - time.monotonic()))
        stopping = stop_at_failure and any(rank.outcome.failed for rank in ranks)
        if not ready and stopping:
            return
        if not ready:
            raise _timeout(waiting, "not done in time")
        reporting = [r for r in waiting if r.pipe in ready or r.process.sentinel in ready]
        for rank in reporting:
            rank.read_report()
        waiting = [rank for rank in waiting if rank not in reporting]
        if not stopping and stop_at_failure and any(rank.outcome.failed for rank in reporting):
            # A failure and those that follow from it are reported close together, in any order.
            deadline_s = min(deadline_s, time.monotonic() + _SETTLE_S)


def _let_end(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.release()
    deadline_s = time.monotonic() + _EXIT_LIMIT_S
    for rank in ranks:
        rank.process.join(max(0.0, deadline_s - time.monotonic()))
        rank.outcome.exit_code = rank.process.exitcode
    running = [rank for rank in ranks if rank.process.is_alive()]
    if running:
        raise _timeout(running, "done, but not ended: threads or processes are left")


def _timeout(ranks: Sequence[_Rank], reason: str) -> TimeoutError:
    for rank in ranks:
        rank.request_stacks()
    deadline_s = time.monotonic() + _EXIT_LIMIT_S
    while not all(rank.has_written_stacks() for rank in ranks) and time.monotonic() < deadline_s:
        time.sleep(_SETTLE_S)
    time.sleep(_SETTLE_S)  # the stacks have several lines
    numbers = ", ".join(str(rank.outcome.rank) for rank in ranks)
    stacks = "\n".join(f"rank {r.outcome.rank}:\n{r.stacks.read_text()}" for r in ranks)
    return TimeoutError(f"ranks {numbers} were {reason}\n\n{stacks}")


class _Rank:
    """One rank's process, as its parent handles it."""

    def __init__(self, number: int, call: bytes, environment: dict[str, str], folder: Path) -> None:
        self.outcome = RankOutcome(number)
        self.stacks = folder / f"rank{number}.txt"
        self.stacks.touch()
        self.pipe, far_end = _context.Pipe()
        self.process = _context.Process(
            target=rank_process.main, args=(far_end, call, environment, str(self.stacks))
        )
        self.process.start()
        far_end.close()

    def read_report(self) -> None:
        """Read the rank's report, or record that it died without one."""
        try:
            report = pickle.loads(self.pipe.recv_bytes()) if self.pipe.poll() else None
        except (EOFError, ConnectionResetError):
            report = None
        if report is None:
            self.process.join(_EXIT_LIMIT_S)
            exit_code = self.process.exitcode
            report = {"died": True, "exit_code": exit_code, "ended_at_s": time.monotonic()}
        for name, value in report.items():
            setattr(self.outcome, name, value)

    def release(self) -> None:
        """Let a rank end that waits after its result."""
        if not self.outcome.failed:
            self.pipe.send_bytes(b"end")

    def request_stacks(self) -> None:
        """Make the rank write its stacks, if it is alive."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, rank_process.STACKS_SIGNAL)

    def has_written_stacks(self) -> bool:
        """Whether the rank has begun to write its stacks, or has ended."""
        return self.stacks.stat().st_size > 0 or not self.process.is_alive()

    def kill(self) -> None:
        """Kill the process and its children if it still runs, then reap it."""
        if self.process.pid is not None and self.process.is_alive():
            try:
                os.killpg(self.process.pid, SIGKILL)
            except ProcessLookupError:  # not the leader of its group yet
                self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()
