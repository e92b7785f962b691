"""Ranks under torchrun come to an end: with the first failure, or with the limit, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hosts import loopback_hosts
from benchmarks.launch import LIMIT_S, run_module

_MODULE = "tests.distributed.failing_run"


def test_first_failure_ends_the_others_too(tmp_path: Path) -> None:
    """Left alone, rank 0 would come to no end within the limit, which is a TimeoutError."""
    with pytest.raises(RuntimeError, match="OSError: on purpose"):
        run_module(loopback_hosts(2), 1, _MODULE, "1", folder=tmp_path, limit_s=LIMIT_S)


def test_ranks_that_come_to_no_end_are_ended_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no end within 1 s\nhost0.log"):
        run_module(loopback_hosts(2), 1, _MODULE, "none", folder=tmp_path, limit_s=1.0)
