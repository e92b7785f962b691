"""Groups that die in a synchronisation or stop for a while, and a Lighthouse that restarts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore

import lightning_hier as lh
from lightning_hier.comm import job_store
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.membership.connections import GroupLostError, open_store, wait_for_all
from tests.conftest import REPOSITORY
from tests.membership.groups import Life, Run, assert_equal_models, lighthouse, live_all, log
from tests.waiting import leave_mark, wait_for_marks, wait_until

TAU = 4

_DILOCO = partial(lh.DiLoCo, block_size=TAU, across_dtype="int8")


@pytest.mark.parametrize(
    ("place", "sync"),
    [
        ("send", _DILOCO()),
        ("commit", _DILOCO()),
        ("send", _DILOCO(overlap=2)),
        ("send", lh.BMUFAdam(block_size=TAU)),  # its sum of steps fails first
    ],
)
def test_a_group_dies_in_a_synchronisation(place: str, sync: BlockSync, tmp_path: Path) -> None:
    """If the group dies before the vote, the others repeat the synchronisation without it.

    If the group dies after the vote, the synchronisation counts.
    """
    lives = [Life(0), Life(1, dies_at=(place, 2)), Life(2)]
    with lighthouse() as address:
        run = Run(str(tmp_path), address, sync, steps=20, optimizer="AdamW", join_timeout_s=5.0)
        outcomes = live_all(run, lives)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.died for outcome in outcomes] == [False, True, False]
    assert outcomes[0].result == outcomes[2].result
    logs = [log(run, number) for number in range(3)]
    assert_equal_models(logs)
    with_all = 3 if place == "commit" else 2
    assert [entry["present"] for entry in logs[0]] == [[0, 1, 2]] * with_all + [[0, 2]] * (
        5 - with_all
    )


def test_a_group_dies_between_quorum_and_connection(tmp_path: Path) -> None:
    """The others detect the loss at once. They undo nothing, because no exchange has started."""
    lives = [Life(0), Life(1, dies_at=("connect", 0)), Life(2)]
    with lighthouse() as address:
        sync = lh.BMUFAdam(block_size=TAU, across_dtype="int8")
        run = Run(str(tmp_path), address, sync, steps=20, optimizer="AdamW", join_timeout_s=60.0)
        begun = time.monotonic()
        outcomes = live_all(run, lives)
    assert time.monotonic() - begun < run.join_timeout_s
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert outcomes[1].died
    assert outcomes[0].result == outcomes[2].result
    assert [entry["present"] for entry in log(run, 0)] == [[0, 2]] * 5


def test_a_group_that_diverges_ends_and_comes_back_with_the_model_of_the_others(
    tmp_path: Path,
) -> None:
    """It ends before it votes. The others synchronise without it, and do not fail."""
    lives = [
        Life(0, stands_at=14, until="returning"),
        Life(1, diverges_at=9),
        Life(2, stands_at=14, until="returning"),
        Life(1, after="restarts-1"),
    ]
    with lighthouse() as address:
        run = Run(str(tmp_path), address, lh.BMUFAdam(block_size=TAU), optimizer="Adam")
        outcomes = live_all(run, lives)
    error = str(outcomes[1].error)
    assert "NonFiniteModelError: NaN or inf after 12 steps in parameters" in error, error
    assert [outcomes[life].error for life in (0, 2, 3)] == [None] * 3
    assert outcomes[0].result == outcomes[2].result == outcomes[3].result
    logs = [log(run, number) for number in range(4)]
    assert_equal_models(logs)
    present = [entry["present"] for entry in logs[0]]
    assert (present[1], present[2], present[-1]) == ([0, 1, 2], [0, 2], [0, 1, 2])


def test_a_group_that_was_stopped_must_restart(tmp_path: Path) -> None:
    """The others continue after its heartbeats have ended. Its own process ends with an error."""
    lives = [
        Life(0, stands_at=22, until="woken"),
        Life(1, stands_at=10, until="woken", stops=True),
        Life(2, stands_at=22, until="woken"),
    ]
    with lighthouse(heartbeat_timeout_s=2.0) as address:
        run = Run(str(tmp_path), address, lh.BMUF(block_size=TAU), steps=32)
        waking = threading.Thread(target=_wake, args=(run,))
        waking.start()
        outcomes = live_all(run, lives)
        waking.join()
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    # 3, and the synchronisations that the others may complete before its first request.
    assert re.search("group 1 must restart: it has missed [3-6] synch", str(outcomes[1].error))
    assert outcomes[0].result == outcomes[2].result


_STORE = """
import sys
from lightning_hier.membership.connections import serve_store
store = serve_store("127.0.0.1")
print(store.port, flush=True)
sys.stdin.read()
"""


def test_groups_do_not_wait_for_a_stopped_process_that_has_their_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel accepts connections for it, so it does not seem to have ended."""
    monkeypatch.setattr(job_store, "_LIMIT_S", 1.0)
    timeout = timedelta(seconds=30)
    with subprocess.Popen(
        [sys.executable, "-c", _STORE],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        store = open_store(address, timeout)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(GroupLostError, match="no answer within 1 s"):
                wait_for_all(store, "exchange", 0, 2, [address], timeout)
            with pytest.raises(GroupLostError, match="no answer within 2 s"):
                open_store(address, timedelta(seconds=2))
        finally:
            process.kill()


def _steps(run: Run, group: int) -> int:
    entries = log(run, group)
    return entries[-1]["step"] if entries else 0


def _wake(run: Run) -> None:
    """Resume a stopped group after three synchronisations of the others without it."""
    folder = Path(run.folder)
    wait_for_marks(folder, "stopped")
    number = int((folder / "stopped").read_text())
    # By steps: a group that has joined late has logged fewer synchronisations.
    wait_until(lambda: min(_steps(run, 0), _steps(run, 2)) >= 5 * TAU, "the other groups")
    os.kill(number, signal.SIGCONT)
    leave_mark(folder, "woken")


def test_a_lighthouse_that_restarts(tmp_path: Path) -> None:
    """Groups wait for it at the end of a block, and then continue together."""
    port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    lives = [Life(group, stands_at=10, until="gone") for group in range(2)]
    run = Run(
        str(tmp_path), f"http://127.0.0.1:{port}", lh.BMUF(block_size=TAU), groups=2, steps=20
    )
    servers = [_serve(port)]

    def restart() -> None:
        wait_until(lambda: len(log(run, 0)) >= 2 and len(log(run, 1)) >= 2, "two synchronisations")
        servers[0].kill()
        servers[0].wait()
        leave_mark(tmp_path, "gone")
        servers.append(_serve(port))

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        outcomes = live_all(run, lives)
    finally:
        restarting.join()
        for server in servers:
            server.kill()
            server.wait()
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert outcomes[0].result == outcomes[1].result
    assert [entry["present"] for entry in log(run, 0)][-1] == [0, 1]


def _serve(port: int) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1"]
    limits = ["--heartbeat_timeout_ms", "3000", "--join_timeout_ms", "20000"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RUST_LOG": "error"}
    return subprocess.Popen([*command, "--bind", f"127.0.0.1:{port}", *limits], env=environment)
