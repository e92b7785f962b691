"""Tests of `tests.ranks`: results, failures, time limits, and the end of all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from tests.ranks import RankError, rank_outcomes, run_ranks


def _rank() -> int:
    return int(os.environ["RANK"])


def _identity() -> tuple[int, ...]:
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE")
    return tuple(int(os.environ[name]) for name in names)


def _pid() -> int:
    return os.getpid()


def _rank_two_fails_and_others_wait() -> None:
    dist.init_process_group("gloo")
    if _rank() == 2:
        raise ValueError("no such thing as rank two")
    dist.barrier()


def _rank_one_is_killed_and_others_wait() -> None:
    dist.init_process_group("gloo")
    if _rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _write_pid_and_sleep_on_rank_one(folder: Path) -> None:
    (folder / str(_rank())).write_text(str(os.getpid()))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / f"child{_rank()}").write_text(str(child.pid))
    if _rank() == 1:
        time.sleep(600)
    child.kill()
    child.wait()


def _announce_and_sleep(folder: Path) -> None:
    (folder / str(_rank())).write_text(str(os.getpid()))
    time.sleep(600)


def _all_refuse(message: str) -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    raise ValueError(f"{message} on every rank")


def _one_refuses() -> None:
    if _rank() == 0:
        raise ValueError("rank 0 only")


def _announced(path: Path) -> int:
    """Wait until a rank has written its process ID to `path`, and return it."""
    deadline_s = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline_s, f"no rank wrote {path.name}"
        time.sleep(0.05)
    return int(path.read_text())


def _still_running(pids: list[int]) -> list[int]:
    """Processes that still run after 10 s, without zombies: a container may not reap orphans."""
    deadline_s = time.monotonic() + 10
    running = pids
    while running and time.monotonic() < deadline_s:
        time.sleep(0.05)
        running = [pid for pid in running if _runs(pid)]
    return running


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_environments_of_several_hosts() -> None:
    identities = run_ranks(_identity, 4, ranks_per_node=2)
    assert identities == [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2)]
    with pytest.raises(ValueError, match="3 ranks do not fill hosts of 2"):
        run_ranks(_identity, 3, ranks_per_node=2)


def test_first_failure_is_raised_with_its_rank_and_traceback() -> None:
    with pytest.raises(RankError, match="rank 2: ValueError: no such thing") as caught:
        run_ranks(_rank_two_fails_and_others_wait, 4)
    assert caught.value.rank == 2
    assert "_rank_two_fails_and_others_wait" in str(caught.value)


def test_death_is_raised_before_errors_that_follow_from_it() -> None:
    with pytest.raises(RankError, match="rank 1: died with exit code -9"):
        run_ranks(_rank_one_is_killed_and_others_wait, 3)


def test_outcomes_have_the_killed_rank() -> None:
    outcomes = rank_outcomes(_rank_one_is_killed_and_others_wait, 3)
    assert [outcome.died for outcome in outcomes] == [False, True, False]
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert all(outcomes[rank].error is not None for rank in (0, 2))


def test_timeout_kills_all_ranks_and_has_their_stacks(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="ranks 1 were not done") as caught:
        run_ranks(_write_pid_and_sleep_on_rank_one, 2, tmp_path, timeout_s=5)
    assert "_write_pid_and_sleep_on_rank_one" in str(caught.value)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    assert not _still_running(pids)


def test_ranks_are_gone_after_success_and_failure() -> None:
    pids = run_ranks(_pid, 3)
    assert len(set(pids)) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RankError):
        run_ranks(_rank_two_fails_and_others_wait, 3)
    server = psutil.Process().children()
    assert not [process for child in server for process in child.children()]


def test_ranks_do_not_outlive_the_tests(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests import test_ranks, ranks\n"
        f"ranks.run_ranks(test_ranks._announce_and_sleep, 2, Path({str(tmp_path)!r}))"
    )
    tests = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])
    try:
        ranks = [_announced(tmp_path / str(rank)) for rank in range(2)]
    finally:
        tests.kill()
        tests.wait()
    assert not _still_running(ranks)


def test_expected_failures_are_returned_as_text() -> None:
    errors = run_ranks(_all_refuse, 3, "bad value", expect_failure=True)
    assert errors == ["ValueError: bad value on every rank"] * 3
    with pytest.raises(AssertionError, match="rank 1 should have raised.*returned a result"):
        run_ranks(_one_refuses, 2, expect_failure=True)
