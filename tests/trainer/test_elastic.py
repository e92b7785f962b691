"""Tests that torchrun jobs resume from the newest checkpoint after ranks or hosts are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.reliability import event_log, job
from benchmarks.reliability.agents import Agent, log_tail, wait_until
from tests.ranks import run_ranks
from tests.resume.runs import differences
from tests.trainer.fitting import fit

JOB = "benchmarks.reliability.job"
# Time for one start and one end of the job, mostly for imports on a busy machine.
LIMIT_S = 240.0
# Additional restarts. torchrun chooses the port of a store long before rank 0 listens there. If
# another program takes the port meanwhile, the start fails and torchrun restarts the job.
_MORE = 10


def _finals(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"final_{rank}.pt", weights_only=True) for rank in range(ranks)]


def _undisturbed(folder: Path, strategy: str, ranks: int, epochs: int) -> dict[str, Any]:
    """Final state of a run without kills."""
    folder.mkdir()
    run_ranks(job.main, ranks, [str(folder), strategy, "--epochs", str(epochs)])
    return _finals(folder, ranks)[0]


def _killed(
    folder: Path, strategy: str, ranks: int, kills: int, seed: int, epochs: int
) -> list[dict[str, Any]]:
    """Final states of a run with ``kills`` kills, after which torchrun's agent restarts it.

    The agent runs in this process, so that ranks fork from the server of `tests.ranks`.
    """
    folder.mkdir()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=folder.name,
        max_restarts=kills + _MORE,
        start_method="forkserver",
    )
    arguments = [str(folder), strategy, "--epochs", str(epochs), "--kills", str(seed), str(kills)]
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as the error for torchrun says
    with _signal_handlers_are_restored():
        elastic_launch(config, job.main)(arguments)
    return _finals(folder, ranks)


@contextmanager
def _signal_handlers_are_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _check_kills(
    folder: Path, strategy: str, ranks: int, *, kills: int, seed: int, epochs: int
) -> list[event_log.Entry]:
    whole = _undisturbed(folder / "through", strategy, ranks, epochs)
    for final in _killed(folder / "killed", strategy, ranks, kills, seed, epochs):
        assert differences(whole, final) == []
    entries = event_log.read(folder / "killed")
    assert sum(entry.event == "kill" for entry in entries) == kills
    starts = [entry.steps for entry in entries if entry.event == "start" and entry.rank == 0]
    assert len(starts) == kills + 1
    assert starts == sorted(starts)
    assert starts[-1] > 0
    return entries


@pytest.mark.timeout(4 * LIMIT_S)
def test_killed_ranks_cost_nothing_but_time(tmp_path: Path) -> None:
    """With this seed, the kill is in the middle of a save."""
    entries = _check_kills(tmp_path, "bmuf", 2, kills=1, seed=20, epochs=2)
    assert {entry.where for entry in entries if entry.event == "kill"} == {"save"}


@pytest.mark.slow
@pytest.mark.timeout(25 * LIMIT_S)
@pytest.mark.parametrize(("strategy", "ranks"), [("bmuf", 2), ("bmuf_adam", 2), ("bmuf_gtc", 4)])
def test_twenty_kills_in_a_row(strategy: str, ranks: int, tmp_path: Path) -> None:
    _check_kills(tmp_path, strategy, ranks, kills=20, seed=1, epochs=20)


@pytest.mark.slow
@pytest.mark.timeout(4 * LIMIT_S)
def test_goes_on_without_a_host_that_was_killed(tmp_path: Path) -> None:
    """Two hosts have an agent and a rank each. The rendezvous store is on neither of them.

    The remaining host resumes alone, and logs the changed layout.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    settings = "is_host=0,join_timeout=60,last_call_timeout=2,keep_alive_interval=1"
    rendezvous = [
        *("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "elastic"),
        *("--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf", settings),
        *("--local-addr", "127.0.0.1"),
    ]
    command = [JOB, str(tmp_path), "bmuf", "--epochs", "3", "--pause-ms", "50"]
    with ExitStack() as stack:
        stays, goes = (
            stack.enter_context(
                Agent(
                    command,
                    ranks=1,
                    restarts=3,
                    log=tmp_path / f"host{host}.log",
                    rendezvous=rendezvous,
                )
            )
            for host in range(2)
        )

        def has_saved_for_two() -> bool:
            return any(entry.steps >= 5 and entry.world == 2 for entry in event_log.read(tmp_path))

        wait_until(has_saved_for_two, LIMIT_S, "the fifth step", tmp_path / "host0.log")
        goes.kill_host()
        assert stays.wait(2 * LIMIT_S) == 0, log_tail(stays.log)
    (final,) = _finals(tmp_path, 1)
    assert (final["world"], final["steps"]) == (1, 30)
    assert all(torch.isfinite(value).all() for value in final["state"].values())
    last = [entry for entry in event_log.read(tmp_path) if entry.event == "start"][-1]
    assert last.world == 1
    assert last.steps >= 3
    assert "Resuming with a change: 1 group of 1 rank instead of 2 of 1" in stays.log.read_text()


def _started_by_torchrun() -> None:
    with pytest.warns(UserWarning, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        fit("bmuf", 1)


def test_restarts_that_would_fail_are_warned_of_before() -> None:
    """By default, torchrun shares the TCP store, which breaks restarts."""
    run_ranks(_started_by_torchrun, 1, env={"TORCHELASTIC_MAX_RESTARTS": "3"})
