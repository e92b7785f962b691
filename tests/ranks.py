"""Run a function on real ranks: the one helper for tests that need several processes.

The processes fork from a server that has imported torch, Lightning and the package already, so that
a run of four ranks starts in a fraction of a second. Each rank sees the environment that torchrun
gives its workers; `dist.init_process_group("gloo")` and `Trainer(strategy="ddp", devices=N)` both
work. As under torchrun, the store at which the ranks meet belongs to their parent, on a port that
the kernel picked: runs beside each other cannot collide, and a rank that ends early takes no store
away.
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

# A run takes seconds. The limit ends one that hangs, on a machine that is busy with other things.
LIMIT_S = 280.0
_SETTLE_S = 0.3
_EXIT_LIMIT_S = 60.0

_context = get_context("forkserver")
# What ranks would import, each for itself. A server that can't import it starts ranks without.
_context.set_forkserver_preload(["tests.preloaded"])


@dataclass(slots=True)
class RankOutcome:
    """What became of one rank: a result, or an error, or a death without a word.

    `error` reads "ValueError: message" and `traceback` is its text. A rank that `died` has neither;
    its `exit_code` is the negated number of the signal that killed it, or what it exited with.
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
    """A rank failed: `rank` is its number, `error` its exception as one line."""

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

    Function, arguments and results travel by pickle: the function must stand at the top level of a
    module. `env` adds to the environment of every rank. With `ranks_per_node` the ranks' variables
    say that they sit on several hosts, so many on each. One default process group a run: a second
    one, after `destroy_process_group`, would meet the keys of the first in the store.

    As soon as one rank fails the others are killed, and its traceback is raised as `RankError`; a
    rank that died without a word comes before what the others make of its death. Under
    `expect_failure` every rank must raise, and their exceptions come back as text. `TimeoutError`
    names the ranks that were not done after `timeout_s`, and where they stood.
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
    """As `run_ranks`, but every rank comes to its own end: for tests that kill ranks on purpose."""
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
    """Every rank's environment, as torchrun would set it, less the address of the store."""
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
            # The first rank of all waits for the fork server's imports; they do not count.
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
            # The cause and what it did to others come close together, in any order.
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
        rank.ask_where_it_stands()
    deadline_s = time.monotonic() + _EXIT_LIMIT_S
    while not all(rank.has_answered() for rank in ranks) and time.monotonic() < deadline_s:
        time.sleep(_SETTLE_S)
    time.sleep(_SETTLE_S)  # an answer has several lines
    numbers = ", ".join(str(rank.outcome.rank) for rank in ranks)
    stacks = "\n".join(f"rank {r.outcome.rank}:\n{r.stacks.read_text()}" for r in ranks)
    return TimeoutError(f"ranks {numbers} were {reason}\n\n{stacks}")


class _Rank:
    """The parent's end of one rank's process."""

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
        """Take the rank's report, or note that it died without one."""
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
        """Tell a rank that waits with its result to end."""
        if not self.outcome.failed:
            self.pipe.send_bytes(b"end")

    def ask_where_it_stands(self) -> None:
        """Have the rank write its stacks; nothing happens where it is gone."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, rank_process.STACKS_SIGNAL)

    def has_answered(self) -> bool:
        """Whether the rank has begun to write its stacks, or is gone."""
        return self.stacks.stat().st_size > 0 or not self.process.is_alive()

    def kill(self) -> None:
        """Kill the process, and what it started, if it still runs; then reap it."""
        if self.process.pid is not None and self.process.is_alive():
            try:
                os.killpg(self.process.pid, SIGKILL)
            except ProcessLookupError:  # not the leader of its group yet
                self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()
